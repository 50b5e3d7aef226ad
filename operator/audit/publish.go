// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/runner"
	"github.com/cadastre/cadastre/witness/findings"
)

// publish writes the report. It reads the present one, checks that this process leads,
// and writes only if no other process has written in the meantime.
func (a *Auditor) publish(ctx context.Context, r reading, confirmed []confirmedFinding) error {
	value, err := proto.Marshal(a.report(r, confirmed))
	if err != nil {
		return fmt.Errorf("write %s: %w", kv.ClusterCheckKey, err)
	}
	_, err = runner.Within(ctx, a.deps.Timeout, func(ctx context.Context) (struct{}, error) {
		x, _, err := a.deps.Store.Get(ctx, kv.ClusterCheckKey) // the zero KeyValue without one
		if err != nil {
			return struct{}{}, err
		}
		if err := a.deps.Fence(ctx); err != nil {
			return struct{}{}, err
		}
		conds := []kvdb.Cond{{Key: kv.ClusterCheckKey, ModRevision: x.ModRevision}}
		_, err = a.deps.Store.Txn(ctx, conds, []kvdb.Op{kvdb.Put(kv.ClusterCheckKey, value)})
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", kv.ClusterCheckKey, err)
	}
	return nil
}

// maxText bounds a text about one object that was not compared, and that of an event.
const maxText = 1024

// bounded returns a text that may have the key or the value of a foreign writer, as a
// message can carry it.
func bounded(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// report returns the message of a report. Findings are left out with which the message
// would be too large; the total counts them.
func (a *Auditor) report(r reading, confirmed []confirmedFinding) *kv.ClusterCheck {
	m := &kv.ClusterCheck{
		Instance: a.deps.Instance,
		At:       a.deps.Now().UnixNano(),
		Every:    int64(a.period),
		Total:    uint64(len(confirmed)),
		Compared: r.compared,
	}
	for _, text := range r.leftOut {
		m.LeftOut = append(m.LeftOut, bounded(text))
	}
	const perFinding = 8 // bytes of the tag and the length
	size := proto.Size(m) + perFinding
	for _, f := range confirmed {
		x := messageOf(f)
		more := proto.Size(x) + perFinding
		if size+more > kv.MaxClusterCheck {
			continue // the next one may be smaller
		}
		size += more
		m.Findings = append(m.Findings, x)
	}
	return m
}

func messageOf(f confirmedFinding) *kv.ClusterFinding {
	m := &kv.ClusterFinding{
		Number:    f.Number,
		Name:      f.Name,
		Text:      f.Text,
		Fix:       f.Fix,
		Signature: f.Signature,
		Node:      f.Subject.Node,
		Pool:      f.Subject.Pool,
		Network:   f.Subject.Network,
		Object:    f.Subject.Object,
		Since:     f.since.UnixNano(),
	}
	if f.Subject.Prefix.IsValid() {
		m.Prefix = f.Subject.Prefix.String()
	}
	if f.Subject.Addr.IsValid() {
		m.Address = f.Subject.Addr.String()
	}
	for _, e := range f.Evidence {
		m.Evidence = append(m.Evidence, e.Text)
	}
	return m
}

// maxEvents limits the events of one comparison.
const maxEvents = 20

// announce writes a warning event for each finding that has none yet: about the node
// that the finding names, otherwise about the ClusterCheck. An event that cannot be
// written is tried again with the next comparison.
func (a *Auditor) announce(ctx context.Context, state findings.ClusterState, confirmed []confirmedFinding) {
	known, present, written := map[string]bool{}, map[string]bool{}, 0
	for _, n := range state.Nodes {
		known[n.Name] = true
	}
	for _, f := range confirmed {
		present[f.Signature] = true
		if a.announced[f.Signature] || written == maxEvents {
			continue
		}
		written++
		node := f.Subject.Node
		if !known[node] {
			node = ""
		}
		if err := a.writeEvent(ctx, node, f); err != nil {
			a.metrics.errors.Inc()
			a.deps.Log.Warn("the event of a finding cannot be written", "finding", f.Number, "error", err)
			continue
		}
		a.announced[f.Signature] = true
		a.deps.Log.Warn("the objects of the cluster contradict each other",
			append([]any{"finding", f.Number, "name", f.Name, "text", f.Text}, subject(f.Subject)...)...)
	}
	for signature := range a.announced {
		if !present[signature] {
			delete(a.announced, signature)
		}
	}
}

// subject returns what a finding is about as attributes of a log.
func subject(s findings.Subject) (attrs []any) {
	if s.Node != "" {
		attrs = append(attrs, "node", s.Node)
	}
	if s.Addr.IsValid() {
		attrs = append(attrs, "address", s.Addr)
	}
	if s.Prefix.IsValid() {
		attrs = append(attrs, "prefix", s.Prefix)
	}
	return attrs
}

// writeEvent writes an event whose name follows from the finding: as long as the API
// server keeps it, another leader does not repeat it.
func (a *Auditor) writeEvent(ctx context.Context, node string, f confirmedFinding) error {
	const component = "cadastre-operator"
	about := corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion().String(),
		Kind:       "ClusterCheck",
		Name:       v1alpha1.ClusterCheckName,
	}
	if node != "" { // the name as UID is the kubelet's convention
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	}
	now := metav1.NewTime(a.deps.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "cadastre-check." + f.Signature,
			Namespace: metav1.NamespaceDefault,
		},
		InvolvedObject:      about,
		Type:                corev1.EventTypeWarning,
		Reason:              reasonOf(f.Name),
		Message:             bounded(fmt.Sprintf("%s %s: %s", f.Number, f.Name, f.Text)),
		Count:               1,
		Source:              corev1.EventSource{Component: component},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		ReportingController: component,
		ReportingInstance:   a.deps.Instance,
	}
	_, err := runner.Within(ctx, a.deps.Timeout, func(ctx context.Context) (*corev1.Event, error) {
		return a.deps.Client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// reasonOf returns a name as the reason of an event: BlockOnTwoNodes.
func reasonOf(name string) (reason string) {
	for part := range strings.SplitSeq(name, "-") {
		reason += strings.ToUpper(part[:1]) + part[1:]
	}
	return reason
}
