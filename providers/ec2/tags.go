// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// The tags of interfaces that CreateInterface creates.
const (
	TagCluster  = "cadastre.dev/cluster"  // Config.Cluster
	TagInstance = "cadastre.dev/instance" // the machine that it was created for
	TagCreated  = "cadastre.dev/created"  // the time of the creator's clock, in the form of RFC 3339
)

// TagOwnIPv6 is the tag of a machine's interface that has the IPv6 addresses which the machine
// itself had before Assign added the first one for pods, separated by spaces. EC2 does not tell
// them apart.
const TagOwnIPv6 = "cadastre.dev/own-ipv6"

// The tags of interfaces that get no addresses: ours, and the one of Amazon's agent. The
// value false means that the interface is managed.
const (
	TagNoManage    = "cadastre.dev/no-manage"
	TagNoManageAWS = "node.k8s.amazonaws.com/no_manage"
)

// tagMap returns tags by key.
func tagMap(tags []types.Tag) map[string]string {
	all := make(map[string]string, len(tags))
	for _, tag := range tags {
		all[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return all
}

// tagFilters returns the filters of EC2 that select objects with all tags.
func tagFilters(tags map[string]string) []types.Filter {
	var filters []types.Filter
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if value := tags[key]; value != "" {
			filters = append(filters, filter("tag:"+key, value))
		} else {
			filters = append(filters, filter("tag-key", key))
		}
	}
	return filters
}

// filter returns one filter of EC2.
func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

// matches reports whether an object has all wanted tags.
func matches(tags, wanted map[string]string) bool {
	for key, value := range wanted {
		if has, ok := tags[key]; !ok || value != "" && has != value {
			return false
		}
	}
	return true
}

// unmanaged reports whether a tag excludes an interface.
func unmanaged(tags map[string]string) bool {
	for _, key := range []string{TagNoManage, TagNoManageAWS} {
		if value, ok := tags[key]; ok && !strings.EqualFold(value, "false") {
			return true
		}
	}
	return false
}

// created returns the time of creation of one of our interfaces, the zero Time if its tag
// has none.
func created(tags map[string]string) time.Time {
	at, err := time.Parse(time.RFC3339, tags[TagCreated])
	if err != nil {
		return time.Time{}
	}
	return at
}
