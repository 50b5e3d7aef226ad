// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveSandboxes stops and removes the sandboxes of a pod from a real runtime, as the
// kubelet does some time after the end of the pod. It returns their number.
func RemoveSandboxes(ctx context.Context, socket, namespace, name string) (n int, err error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, fmt.Errorf("remove the sandboxes of a pod: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := cri.NewRuntimeServiceClient(conn)
	list, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return 0, fmt.Errorf("remove the sandboxes of a pod: %w", err)
	}
	for _, s := range list.GetItems() {
		if s.GetMetadata().GetNamespace() != namespace || s.GetMetadata().GetName() != name {
			continue
		}
		_, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.GetId()})
		if err == nil {
			_, err = client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
		}
		if err != nil {
			return n, fmt.Errorf("remove sandbox %s: %w", s.GetId(), err)
		}
		n++
	}
	return n, nil
}
