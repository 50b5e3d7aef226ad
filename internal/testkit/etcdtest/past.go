// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// Snapshot is a state of a server that it can go back to.
type Snapshot struct{ dir string }

// Wipe stops the server, deletes its data and starts it empty. It is what an
// operator gets who sets etcd up again with the same flags: the cluster ID is
// the same as before, and revisions start again. Not for members of a cluster.
func (s *Server) Wipe() error {
	return s.between("wipe", func() error { return os.RemoveAll(s.data()) })
}

// Replace is Wipe with another cluster ID.
func (s *Server) Replace() error {
	return s.between("replace", func() error {
		s.clusters++
		s.token = "etcdtest-" + strconv.Itoa(s.clusters)
		return os.RemoveAll(s.data())
	})
}

// Snapshot keeps the state that the server has now. The server is away for as
// long as that takes.
func (s *Server) Snapshot() (Snapshot, error) {
	var kept Snapshot
	err := s.between("snapshot", func() error {
		s.snapshots++
		kept.dir = filepath.Join(s.dir, "snapshot"+strconv.Itoa(s.snapshots))
		return os.CopyFS(kept.dir, os.DirFS(s.data()))
	})
	return kept, err
}

// Restore stops the server and starts it with the state that it had then.
func (s *Server) Restore(kept Snapshot) error {
	return s.between("restore", func() error {
		if err := os.RemoveAll(s.data()); err != nil {
			return err
		}
		return os.CopyFS(s.data(), os.DirFS(kept.dir))
	})
}

// Compact forgets all changes before rev.
func (s *Server) Compact(ctx context.Context, rev int64) error {
	return s.administer("compact", func(c *clientv3.Client) error {
		_, err := c.Compact(ctx, rev, clientv3.WithCompactPhysical())
		return err
	})
}

// Revision is the server's own revision now.
func (s *Server) Revision() (rev int64, err error) {
	err = s.running(func(e *embed.Etcd) error {
		rev = e.Server.KV().Rev()
		return nil
	})
	return rev, err
}

// EnableAuth refuses all clients but user, which may read and write the keys
// that begin with prefix (the empty one: all), and root, who has the same password.
func (s *Server) EnableAuth(ctx context.Context, user, password, prefix string) error {
	return s.administer("enable authentication", func(c *clientv3.Client) error {
		key, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
		if prefix == "" {
			key, end = "\x00", "\x00"
		}
		for _, step := range []func() error{
			func() error { _, err := c.RoleAdd(ctx, "root"); return err },
			func() error { _, err := c.UserAdd(ctx, "root", password); return err },
			func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
			func() error { _, err := c.RoleAdd(ctx, user); return err },
			func() error {
				_, err := c.RoleGrantPermission(ctx, user, key, end, clientv3.PermissionType(clientv3.PermReadWrite))
				return err
			},
			func() error { _, err := c.UserAdd(ctx, user, password); return err },
			func() error { _, err := c.UserGrantRole(ctx, user, user); return err },
			func() error { _, err := c.AuthEnable(ctx); return err },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// administer calls do with a client that needs no network.
func (s *Server) administer(what string, do func(*clientv3.Client) error) error {
	err := s.running(func(e *embed.Etcd) error {
		c := v3client.New(e.Server)
		defer func() { _ = c.Close() }()
		return do(c)
	})
	if err != nil {
		return fmt.Errorf("%s etcd at %s: %w", what, s.address, err)
	}
	return nil
}
