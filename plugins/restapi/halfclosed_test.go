// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// hurried is a journal on a loaded machine: if its reader can be called off, it is
// called off before the first record.
type hurried struct {
	ledger.Journal
	opened bool // the ledger has read it once
}

func (j *hurried) Load(ctx context.Context, f func(kvdb.KeyValue) error) error {
	if !j.opened {
		j.opened = true
	} else if err := calledOff(ctx); err != nil {
		return err
	}
	return j.Journal.Load(ctx, f)
}

func calledOff(ctx context.Context) error {
	if ctx.Done() != nil {
		<-ctx.Done()
	}
	return ctx.Err()
}

// TestACallerThatClosesItsSendingHalf: the request ends with the sending half of the
// connection, and the caller waits for the answer.
func TestACallerThatClosesItsSendingHalf(t *testing.T) {
	for path, request := range map[string]string{
		localapi.PathCheck:       "GET %s HTTP/1.0\r\n\r\n",
		localapi.PathSink:        "GET %s HTTP/1.0\r\n\r\n",
		localapi.PathNodes:       "GET %s HTTP/1.0\r\n\r\n",
		localapi.PathPools:       "GET %s HTTP/1.0\r\n\r\n",
		localapi.PathResync:      "POST %s HTTP/1.0\r\n\r\n",
		localapi.PathNodeRelease: "POST %s HTTP/1.0\r\nContent-Length: 12\r\n\r\n{\"name\":\"n\"}",
	} {
		t.Run(path, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t)
			a.deps.Southbound = dumper(func(ctx context.Context) (map[string]proto.Message, error) { return nil, calledOff(ctx) })
			a.deps.State = state{resync: calledOff}
			a.deps.Cluster = cluster{
				nodes: func(ctx context.Context) ([]localapi.Node, error) { return nil, calledOff(ctx) },
				pools: func(ctx context.Context) ([]localapi.Pool, error) { return nil, calledOff(ctx) },
				releaseNode: func(ctx context.Context, _ string, _ bool) (localapi.NodeReleaseReply, error) {
					return localapi.NodeReleaseReply{}, calledOff(ctx)
				},
			}
			var err error
			a.deps.Ledger, err = ledger.Open(ctx(), &hurried{Journal: journal.NewMemory()}, ledger.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			s := a.serve(t, socketIn(runDir(t)))
			c, err := net.Dial("unix", s.socket)
			g.Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			_, err = fmt.Fprintf(c, request, path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.(*net.UnixConn).CloseWrite()).To(Succeed())
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			g.Expect(err).NotTo(HaveOccurred())
			defer answer.Body.Close()
			g.Expect(answer.StatusCode).To(Equal(http.StatusOK))
		})
	}
}
