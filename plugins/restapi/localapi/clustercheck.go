// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import "time"

// PathClusterCheck is the path of the last comparison of the cluster's objects: ClusterCheck.
const PathClusterCheck = "/v1/check/cluster"

// States of a ClusterCheck.
const (
	ClusterCheckCurrent       = "current"        // the operator compares, and its last report is here
	ClusterCheckOutdated      = "outdated"       // the operator has not reported for too long
	ClusterCheckNone          = "none"           // no operator has reported
	ClusterCheckNotApplicable = "not applicable" // the node has the store for itself
)

// ClusterCheck holds the operator's last comparison of the cluster's objects.
type ClusterCheck struct {
	State    string           `json:"state"`
	Problem  string           `json:"problem,omitempty"` // of every state but current: the reason, and what to do
	Instance string           `json:"instance"`          // of the operator that has compared
	At       time.Time        `json:"at"`                // by the operator's clock
	Total    uint64           `json:"total"`             // findings, also those that are too many to be listed
	Findings []ClusterFinding `json:"findings"`
	Compared []string         `json:"compared"` // the objects, such as "12 Nodes"
	LeftOut  []string         `json:"leftOut"`  // what was not compared, with the reason
}

// ClusterFinding represents one difference between objects of the cluster.
type ClusterFinding struct {
	Finding
	Since time.Time `json:"since"` // first seen by the operator that has compared
}
