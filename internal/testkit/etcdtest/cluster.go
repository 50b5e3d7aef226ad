// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"errors"
	"fmt"
	"time"
)

// Cluster is some servers that are one store.
type Cluster struct{ Members []*Server }

// StartCluster runs n members until the test ends.
func StartCluster(tb TB, n int, opts ...Option) *Cluster {
	tb.Helper()
	c, err := startClusterIn(tb.TempDir(), n, opts...)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// startClusterIn runs n members with all that they have below dir.
func startClusterIn(dir string, n int, opts ...Option) (*Cluster, error) {
	members, err := startAll(dir, n, append([]Option{tick(100 * time.Millisecond)}, opts...))
	if err != nil {
		return nil, fmt.Errorf("start etcd cluster in %s: %w", dir, err)
	}
	return &Cluster{members}, nil
}

// Endpoints are those of all members, also of those that are stopped.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Endpoint())
	}
	return all
}

// Leader is the index of the member that leads; false while none does, or none
// that runs knows.
func (c *Cluster) Leader() (int, bool) {
	for i, m := range c.Members {
		m.mu.Lock()
		leads := m.etcd != nil && m.etcd.Server.Leader() == m.etcd.Server.MemberID()
		m.mu.Unlock()
		if leads {
			return i, true
		}
	}
	return 0, false
}

// Close stops all members.
func (c *Cluster) Close() error {
	var errs []error
	for _, m := range c.Members {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
