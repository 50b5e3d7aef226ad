// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/ast"
	"testing"

	. "github.com/onsi/gomega"
)

// threads are the files that start goroutines, and how those end. Everything
// else runs in the goroutine of its caller.
func threads() exceptions {
	return exceptions{
		"ipam/datastore/jsonfile.go: Go":                              "closes a file that nothing is read from or written to; the next write but one waits for it",
		"internal/rtnl/monitor.go: go":                                "reads the announcements of a subscription; ended and awaited by its last follower",
		"plugins/ipam/claimers.go: AfterFunc":                         "tries again what a full queue refused; ends with the event loop",
		"agent/run.go: Go":                                            "all parts of the agent start here and are awaited here",
		"cmd/cadastre-docker-plugin/run.go: Go":                       "the plugin's parts, awaited in serve",
		"operator/runner/election.go: AfterFunc":                      "ends the controllers with the leadership; stopped when they have ended",
		"operator/runner/election.go: Go":                             "the election; awaited by elect",
		"operator/runner/runner.go: Go":                               "the controllers; awaited by work",
		"operator/runner/queue.go: Go":                                "a run of a key; awaited by Queue.Run",
		"operator/runner/queue.go: AfterFunc":                         "frees the worker of a long run; stopped when the run ends",
		"operator/serve.go: Go":                                       "the listener; awaited by serve",
		"operator/page_objects.go: Go":                                "the informers of an open page; ended by their context, awaited by Run",
		"operator/nodeipam/api.go: go":                                "Controller.Start; ended and awaited by Close",
		"operator/nodeipam/loop.go: Go":                               "Run's workers; ended by its context, awaited by it",
		"operator/netresource/objects/objects.go: Go":                 "the informer; awaited by Follow",
		"operator/netresource/clusterpool/follow.go: Go":              "writes status; awaited by Follow",
		"operator/netresource/manager.go: Go":                         "awaited by Close; workers by Resync",
		"operator/netresource/manager.go: AfterFunc":                  "frees the worker of a long round; stopped when the round ends",
		"ipam/source.go: Go":                                          "follows and reports the NetResourceSet of a subscribed IPAM; ended and awaited by Close",
		"operator/netresource/published.go: go":                       "a call of a published provider; awaited by its caller until the deadline, then counted in a gauge; Close names those that do not return",
		"operator/netresource/sweep.go: Go":                           "deletes orphans; awaited by Follow",
		"operator/ksr/feed.go: Go":                                    "the informer of a kind; awaited by the feed",
		"operator/ksr/follow.go: AfterFunc":                           "bounds the opening of a watch; stopped when it is open",
		"operator/ksr/ksr.go: Go":                                     "one feed for each kind; awaited by Run",
		"cmd/cadastre/progress.go: go":                                "draws the progress of a verb; ended and awaited by end",
		"cmd/cadastre/release.go: go":                                 "a read from the terminal cannot be cancelled; it ends with the process",
		"witness/kernel/thread.go: go":                                "a thread that enters network namespaces, and ends if it cannot go back; awaited by Read",
		"southbound/background.go: Go":                                "a watch of the actual state; awaited by Run",
		"httpserver/httpserver.go: AfterFunc":                         "shuts the server down when its context ends; awaited by Serve",
		"controller/lifecycle.go: go":                                 "the loop of AfterInit; ended and awaited by Close",
		"controller/process.go: AfterFunc":                            "the watchdog of an event, stopped when the event ends",
		"controller/guard.go: go":                                     "ends the coroutine of a call that has ended its goroutine; ends at once",
		"ipam/ipamapi/ipamapitest/races.go: go":                       "workers of a test, awaited by it",
		"internal/testkit/apistoretest/cases.go: Go":                  "workers of a test, awaited by it",
		"plugins/kubestate/apistore/store.go: AfterFunc":              "ends a request with the store; stopped when the request ends",
		"plugins/kubestate/apistore/watch.go: AfterFunc":              "ends a watch with the store, and a request with the watch",
		"plugins/kubestate/apistore/watch.go: go":                     "the streams of a watch; awaited by Close",
		"plugins/kubestate/kubestatetest/cases.go: Go":                "workers of a test, awaited by it",
		"plugins/kubestate/kubestatetest/suite.go: Go":                "workers of a test, awaited by it",
		"kvdb/bolt/committer.go: Go":                                  "commits what callers wait for together; awaited by Close",
		"kvdb/etcd/call.go: AfterFunc":                                "ends a request with the store; stopped when the request ends",
		"kvdb/etcd/client.go: AfterFunc":                              "ends a dial with the call that needs it",
		"internal/testkit/clouds/cloudlab/crowd.go: Go":               "the pods of a node; awaited by Stop",
		"internal/testkit/clouds/cloudlab/hypervisor.go: Go":          "reads the cloud; awaited at the end of the test",
		"internal/testkit/clouds/cloudlab/releases.go: Go":            "watches the NetResourceSets; awaited at the end of the test",
		"internal/testkit/netlab/tools.go: Go":                        "forwards connections; awaited by the stop that Relay returns",
		"internal/testkit/netlab/tools.go: AfterFunc":                 "closes a connection at the end of the relay; stopped with the connection",
		"internal/testkit/clouds/cloudlab/sniffer.go: go":             "reads the frames of a link; awaited by close",
		"internal/testkit/stage/process.go: go":                       "waits for the end of a program; awaited by its Stop",
		"internal/testkit/stage/talk.go: go":                          "reads the answers of a program; ends with it",
		"internal/testkit/netlab/echo.go: go":                         "answers packets; awaited by Close",
		"internal/testkit/netlab/flow.go: Go":                         "sends packets and reads the answers; awaited by End",
		"internal/testkit/netlab/stream.go: go":                       "sends a stream; ends with its connection, which the caller closes",
		"internal/testkit/engines/containerd/server.go: AfterFunc":    "kills a containerd that does not end; stopped when it has ended",
		"internal/testkit/engines/critest/server.go: Go":              "the server; awaited by Stop",
		"internal/testkit/etcdtest/link.go: Go":                       "both ways of a connection through the proxy; awaited by its Close",
		"internal/testkit/etcdtest/proxy.go: Go":                      "the proxy and its connections; awaited by its Close",
		"internal/testkit/etcdtest/server.go: AfterFunc":              "breaks what a stopped server has under way",
		"kvdb/etcd/watch.go: AfterFunc":                               "ends a watch with the store; stopped when the watch ends",
		"kvdb/etcd/watch.go: go":                                      "the stream of a watch; awaited by Close",
		"kvdb/etcd/watcher.go: Go":                                    "one for each watcher; awaited by Close",
		"internal/testkit/faulty/watcher.go: Go":                      "one for each watcher; awaited by Close",
		"kvdb/internal/watchlog/watcher.go: Go":                       "one for each watcher; awaited by Close",
		"kvdb/kvdbtest/suite.go: Go":                                  "workers of a test, awaited by it",
		"kvdb/kvdbtest/races.go: go":                                  "workers of a test, awaited by it",
		"plugins/restapi/restapi.go: Go":                              "one for each listener; awaited by Serve",
		"plugins/restapi/comparisons.go: Go":                          "the comparison under way, and what ends it with the agent; awaited by Serve",
		"operator/netresource/netresourcetest/netresourcetest.go: go": "a check of a provider; awaited, or the check fails because it does not return",
	}
}

// goroutines finds where production code starts one: a go statement, Go of a
// WaitGroup or of its kin, AfterFunc.
func goroutines(s source) []finding {
	if s.test() || s.generated() || s.in("test") {
		return nil
	}
	const why = "goroutines start in few places, which say how they end: run it in the caller's, or add the file with its reason"
	var found []finding
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, finding{s.path, s.line(n), "go", why})
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "TryGo" || sel.Sel.Name == "AfterFunc") {
				found = append(found, finding{s.path, s.line(n), sel.Sel.Name, why})
			}
		}
		return true
	})
	return found
}

func TestGoroutinesAreFound(t *testing.T) {
	g := NewWithT(t)
	const bad = `package p
func f(x T) {
	go f(x)
	x.group.Go(func() { go func() {}() })
	context.AfterFunc(x.ctx, x.stop)
}
`
	g.Expect(subjects(t, goroutines, "plugins/p/p.go", bad)).To(Equal([]string{"go", "Go", "go", "AfterFunc"}))
	g.Expect(subjects(t, goroutines, "plugins/p/p_test.go", bad)).To(BeEmpty())
}
