// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kernel reads the network namespaces of a node: links and addresses of all,
// routes, and the neighbours of the host.
//
// # Sources
//
// A Reader finds namespaces in five places. The first is the host's own namespace. Then
// come the files below folders, the files that a caller names (such as those of leases),
// and /proc/PID/ns/net of all processes. The last are the links of the host, since the
// kernel gives the host's namespace an ID for each namespace that one of its links leads
// to. The same namespace under several names counts once. The last source needs no file
// and no process: it also shows a pod whose file was removed, while a process or an open
// file still holds its namespace.
//
// # Privilege
//
// The reader sends its questions through one socket in the host's namespace and names the
// other namespace by its ID (Linux 4.20), so it enters none. What is needed for what:
//
//   - CAP_NET_ADMIN: links and addresses of all namespaces. The reader assigns an ID to a
//     namespace that has none, as "ip netns set NAME auto" does: its only change.
//   - hostNetwork: this process's namespace counts as the host's.
//   - CAP_SYS_ADMIN: routes of other namespaces, and Options.Host. Without it,
//     Namespace.RoutesHidden is set, and the view is complete otherwise.
//   - /var/run/netns and /var/run/docker/netns with mountPropagation HostToContainer: the
//     files of namespaces. Without propagation they look like plain files; the reader
//     notices that, and sets Hidden.
//   - hostPID (or the host's procfs below Options.Proc) and CAP_SYS_PTRACE: namespaces
//     that have neither a file nor a link to the host. Without hostPID those stay unknown
//     (KernelView.Limits). With hostPID and without CAP_SYS_PTRACE, processes that other
//     users run in namespaces of their own are Hidden, so that nothing is ever proved:
//     grant both or neither.
//
// # Which namespaces count
//
// Every user of a node can make a user namespace with network namespaces of its own, and give
// their links any address. Namespace.Counts tells them from those that have to do with the
// node. A namespace counts if a link connects it with the host's. It also counts if one of
// the files that name it is in the folder of Docker's sandboxes or was passed to Read. The
// owner of a namespace plays no part: pods and agents may have users of their own.
// World.Sightings says which addresses of namespaces that count are reached there.
//
// # What a view proves
//
// An address in a view was on that link during the read. Absence from a view without
// Hidden proves that no namespace which the sources show had the address when it was
// read. The view is not a snapshot of one instant. An address that moves from a
// namespace that is not yet read to one that already was is missed, so a caller needs
// two views. A view cannot show:
//
//   - a namespace without a link to the host that only an open file, a socket or a
//     thread other than the first of its process holds, or that is below a link of a
//     pod, not of the host (nested containers);
//   - the addresses of virtual machines, and those that a program answers for without
//     an address of the kernel (proxy ARP, AF_PACKET, user-space stacks);
//   - the addresses inside a namespace of a user namespace that this process has no
//     CAP_NET_ADMIN for: the namespace is Hidden;
//   - processes, and namespaces that only they show, without hostPID.
//
// # Failure
//
// Read fails if the host's own namespace cannot be read, and on kernels before 4.20. A
// namespace that ends while it is read is not an error. Neither is a path that is a
// plain file, such as a mount point that a reboot has left. A namespace that exists and
// cannot be read is named in Hidden, with the reason.
//
// # Ownership and concurrency
//
// A Reader is immutable, and any goroutine may call Read. Read holds at most one
// namespace open, plus the last one that it entered, and holds none when it returns: it
// never keeps a namespace alive. A view belongs to its caller.
package kernel
