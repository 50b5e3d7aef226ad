// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package runtime reads the pod sandboxes of this node from its container runtimes,
// over the CRI (version 1) at their sockets: containerd, CRI-O, k3s and cri-dockerd.
//
// # What a view proves
//
// A sandbox of a view exists in the runtime: kubelet has not had it removed. A sandbox
// that is absent had been removed, or was not yet listed, at RuntimeView.Taken. A sandbox
// that has stopped stays in the list until the kubelet removes it, within a minute.
//
// With Auto every socket that exists is read, not only the first: a node that runs CRI-O
// may also have a containerd that has no sandbox at all. A reading fails if one of them
// does not answer or is not ready. It also fails if one is not there any more and had
// sandboxes when it was read last, because a runtime that stops removes its socket. A
// containerd without the CRI, as a Docker engine brings it, is left out.
//
// # What a view cannot prove
//
//   - A sandbox that is being created is not listed before its ADD has returned.
//     containerd (1.6 to 2.4) adds it to its list after setupPodNetwork and after the start
//     of the pause container; version 2 pulls the pause image in between, if it is absent.
//     CRI-O leaves a sandbox out until it is created. So a lease is older than the sandbox
//     that holds it, by seconds or, with a slow registry, by minutes. The grace
//     period of a reclaim must be longer than this, and the kernel must agree: the address
//     is in the sandbox's namespace as soon as the plugin behind ours has returned.
//   - Containers that were not made through the CRI, such as those of nerdctl, ctr, podman
//     and Docker, are not listed, although they may use the same CNI networks.
//   - A runtime that is not running lists nothing, and its containers go on: its absence
//     is an error, never an empty view.
//   - containerd leaves a sandbox out whose data it could not load when it started. It
//     logs that, and the CRI does not show it.
//
// # Ownership and concurrency
//
// Any goroutine may call a Reader; readings take turns. The reader keeps one connection to
// each runtime until Close, and the details of each sandbox as long as its runtime lists it.
//
// # Failure
//
// Each call has a deadline, and each answer a largest size. A reading returns a complete
// view or an error. The error wraps witness.ErrNotApplicable if the endpoint is None, and
// ErrNoRuntime if Auto found no runtime. After an error the next reading begins with new
// connections, and RuntimeView.Since with its time.
//
// The right to use such a socket is the right to be root on the node: the CRI has no call
// that only reads. This package calls Version, Status, ListPodSandbox and PodSandboxStatus.
package runtime
