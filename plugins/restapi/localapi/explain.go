// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import "time"

// Paths of the explanations.
const (
	// PathExplain answers with an explain.Tree. The arguments are exactly one of
	// pod=NAMESPACE/NAME, container=ID, address=ADDRESS, node=NAME (may be empty) and
	// pool=NAME; with address also at=TIME in RFC 3339; and zone=OFFSET of the texts, such
	// as +02:00.
	PathExplain = "/v1/explain"
	// PathHistory answers with every HistoryEntry of a query, the newest first. The
	// arguments are pool, address, pod, container, since and until (RFC 3339), before (a
	// number) and limit (1000 without it, 10000 at most).
	PathHistory = "/v1/history"
)

// HistoryEntry is one recorded change of a lease, an exclusion or a block.
type HistoryEntry struct {
	Number       uint64     `json:"number"`
	Time         time.Time  `json:"time"`
	Action       string     `json:"action"` // claimed, released, expired, pending, confirmed, quarantined, restored, moved, excluded, readmitted, block opened, block draining, block closed
	Pool         string     `json:"pool"`
	IP           string     `json:"ip,omitempty"` // without a mask; "" for a block
	Block        string     `json:"block,omitempty"`
	Purpose      string     `json:"purpose"`
	Network      string     `json:"network,omitempty"`
	ContainerID  string     `json:"containerID,omitempty"`
	IfName       string     `json:"ifName,omitempty"`
	PodNamespace string     `json:"podNamespace,omitempty"`
	PodName      string     `json:"podName,omitempty"`
	PodUID       string     `json:"podUID,omitempty"`
	NetNS        string     `json:"netns,omitempty"`
	Generation   uint64     `json:"generation,omitempty"`
	Since        *time.Time `json:"since,omitempty"` // of an end: the begin of the state that ended
	After        string     `json:"after,omitempty"` // the time to the expiry of a pending lease
	Event        *uint64    `json:"event,omitempty"` // number of the event that made the change, in the run of the agent at that time
	EventName    string     `json:"eventName,omitempty"`
	Reason       string     `json:"reason,omitempty"`
}
