// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// Deps holds the dependencies of the plugin. Requests call them from several
// goroutines at once. The API answers 501 to requests for an interface that is nil, and
// the status of an error that is a *localapi.StatusError.
type Deps struct {
	controller.PluginDeps
	Listen Listen

	Now     func() time.Time // nil: time.Now
	Agent   Agent
	Ledger  *ledger.Ledger
	Metrics prometheus.Gatherer

	Pods       Pods // nil: CNI requests are answered with 503
	Loop       Loop
	State      State
	Southbound Southbound
	Database   Database
	Doubt      Doubt
	Cluster    Cluster
	Docker     Docker
	Reclaims   Reclaims
	Checker    Checker // nil: the ledger is compared with itself only
	Logs       Logs
	Traces     Traces // nil: CNI requests are not traced
}

// Listen holds the listeners of the API.
type Listen struct {
	Socket  string            // path of the unix socket
	Limits  httpserver.Limits // of the socket
	Opened  func()            // called when the socket accepts connections; may be nil
	REST    *TCP              // the read-only API; nil: not served
	Metrics *TCP              // metrics and probes; nil: not served

	// After returns a channel that fires after the pause between two attempts to
	// listen on the network; nil: time.After.
	After func(time.Duration) <-chan time.Time
}

// Agent describes the whole agent.
type Agent interface {
	Status() localapi.Status
}

// Pods serves CNI requests.
type Pods interface {
	// Accept notes a connection, in the order in which connections are accepted. gone
	// reports whether its caller has hung up; left is called when no first CNI request of
	// the connection can come any more.
	Accept(ctx context.Context, gone func() bool) (_ context.Context, left func())
	Serve(ctx context.Context, req cni.Request) (cni.Reply, error)
	// Delivered is called after Serve has succeeded. err is nil if the caller has got
	// the reply.
	Delivered(req cni.Request, reply cni.Reply, err error)
	// Delete ends the attachment of a lease of a pod.
	Delete(ctx context.Context, l ledger.Lease) error
}

// Loop shows the event loop.
type Loop interface {
	Events(seq uint64) ([]controller.Record, <-chan struct{})
	Query(q controller.HistoryQuery) ([]controller.Record, error)
}

// State reads the state of the cluster anew.
type State interface {
	Resync(ctx context.Context) error   // returns when the loop has applied it
	Dispatch(ctx context.Context) error // returns when the loop has been asked
}

// Southbound shows the values of the southbound, by key.
type Southbound interface {
	Dump(ctx context.Context) (map[string]proto.Message, error)
}

// Database writes a copy of the node's database.
type Database interface {
	Backup(w io.Writer) (int64, error)
}

// Doubt tells whether the database may lack leases. The ledger ends the doubt.
type Doubt interface {
	Doubt() *bolt.Doubt
	Last() bolt.Commit
}

// Cluster shows and changes what the nodes of the cluster share. ClusterViews
// implements it.
type Cluster interface {
	Nodes(ctx context.Context) ([]localapi.Node, error)
	ReleaseNode(ctx context.Context, req localapi.NodeReleaseRequest) (localapi.NodeReleaseReply, error)
	Pools(ctx context.Context) ([]localapi.Pool, error)
	// Apply changes nothing if dryRun is set, if the result says Refused, or if there
	// is an error.
	Apply(ctx context.Context, file []byte, dryRun bool) (localapi.ApplyResult, error)
	// IPAM fails before the networks of the node are known.
	IPAM() (localapi.ContivIPAM, error)
	ClusterChecks
}

// Docker shows, keeps and ends the pools of Docker's networks.
type Docker interface {
	Pools() ([]ipamapi.Pool, error)
	EndPool(ctx context.Context, poolID string, force bool) ([]ledger.Lease, error)
	KeepPool(ctx context.Context, poolID string) error
}

// Checker compares the ledger with the witnesses and repairs differences. Checks
// implements it.
type Checker interface {
	Check(ctx context.Context) (localapi.CheckReport, error)
	Repair(ctx context.Context, req localapi.RepairRequest) (localapi.RepairReply, error)
	// Observe reads all witnesses anew and acts on nothing.
	Observe(ctx context.Context) (findings.Book, *witness.World, error)
}
