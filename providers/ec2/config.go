// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/cadastre/cadastre/cloud"
)

// Config holds the properties of a Cloud. Only Cluster is required.
type Config struct {
	// Cluster names the cluster in the tags of interfaces that the Cloud creates. Two
	// clusters of one account need two names.
	Cluster string
	// Region of EC2; empty: that of the environment, the profile, or the machine.
	Region string
	// Endpoint replaces the URL of EC2.
	Endpoint string
	// MetadataEndpoint replaces the URL of the instance metadata service.
	MetadataEndpoint string
	// Credentials replaces the SDK's chain: environment, profile, web identity, instance role.
	Credentials aws.CredentialsProvider
	// Transport sends the requests to EC2; nil: http.DefaultTransport, without a budget.
	Transport http.RoundTripper

	// VPC selects machines by the ID of their VPC; empty: the one of the machines that
	// InstanceTags selects.
	VPC string
	// InstanceTags selects the machines of Read. An empty value means any value. Empty:
	// the tag kubernetes.io/cluster/<Cluster>, unless VPC is set.
	InstanceTags map[string]string
	// SubnetTags selects the subnets for new interfaces. Empty: the subnets of the
	// machines' first interfaces.
	SubnetTags map[string]string
	// SecurityGroupTags selects the security groups of new interfaces. Empty: those of
	// the machine's first interface.
	SecurityGroupTags map[string]string
	// Limits holds the limits of instance types that EC2 does not describe, or describes
	// wrongly.
	Limits map[string]cloud.Limits

	// DetachTimeout bounds the wait for a detached interface; 0: a minute.
	DetachTimeout time.Duration
	// CleanUpTimeout bounds the removal of what a failed CreateInterface has made; 0: 30
	// seconds.
	CleanUpTimeout time.Duration
	// FirstPause is the first wait between two attempts; 0: 500 milliseconds.
	FirstPause time.Duration

	Log    *slog.Logger     // nil: slog.Default
	Now    func() time.Time // nil: the clock
	Random func() float64   // spreads waits; nil: math/rand
	Token  func() string    // returns a new token of a creation; nil: random
}

// check sets the defaults and returns what is wrong.
func (c *Config) check() error {
	if c.Cluster == "" {
		return errors.New("open EC2: Cluster is empty: want the name of the cluster, such as prod")
	}
	if len(c.Cluster) > 100 {
		return fmt.Errorf("open EC2: Cluster %q has %d characters: want at most 100", c.Cluster, len(c.Cluster))
	}
	for _, tags := range []map[string]string{c.InstanceTags, c.SubnetTags, c.SecurityGroupTags} {
		for key := range tags {
			if key == "" {
				return fmt.Errorf("open EC2: the tag key %q is empty: want key=value", key)
			}
		}
	}
	if len(c.InstanceTags) == 0 && c.VPC == "" {
		c.InstanceTags = map[string]string{"kubernetes.io/cluster/" + c.Cluster: ""}
	}
	if c.DetachTimeout == 0 {
		c.DetachTimeout = time.Minute
	}
	if c.CleanUpTimeout == 0 {
		c.CleanUpTimeout = 30 * time.Second
	}
	if c.FirstPause == 0 {
		c.FirstPause = 500 * time.Millisecond
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = mathrand.Float64
	}
	if c.Token == nil {
		c.Token = rand.Text
	}
	return nil
}
