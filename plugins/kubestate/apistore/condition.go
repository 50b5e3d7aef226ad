// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeCondition holds a condition of a Node.
type NodeCondition struct {
	Type, Reason, Message string
	OK                    bool
	Since                 time.Time // of the last change of OK
}

// SetNodeCondition writes a condition into the status of this store's Node. It
// replaces the one of the same type.
func (s *Store) SetNodeCondition(ctx context.Context, n NodeCondition) error {
	c := corev1.NodeCondition{
		Type:               corev1.NodeConditionType(n.Type),
		Status:             corev1.ConditionFalse,
		Reason:             n.Reason,
		Message:            n.Message,
		LastTransitionTime: metav1.NewTime(n.Since),
		LastHeartbeatTime:  metav1.NewTime(n.Since),
	}
	if n.OK {
		c.Status = corev1.ConditionTrue
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return err
	}
	err = s.ask(ctx, func(ctx context.Context) error {
		nodes := s.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
		patch := types.StrategicMergePatchType
		_, err := nodes.Patch(ctx, s.reader.node, patch, body, metav1.PatchOptions{}, "status")
		return err
	})
	if err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", n.Type, s.reader.node, err)
	}
	return nil
}
