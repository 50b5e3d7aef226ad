// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/backoff"
)

var (
	_ cloud.Cloud = (*Cloud)(nil)
	_ cloud.Self  = (*Cloud)(nil)
)

// Cloud is EC2 in one region, with the credentials of one role.
type Cloud struct {
	config Config
	ec2    *ec2.Client
	imds   *imds.Client
	pause  backoff.Policy

	mu     sync.Mutex
	types  map[string]typeLimits     // by instance type
	vpcs   map[string]vpcRanges      // by VPC
	groups map[string]groupsOfVPC    // by VPC
	facts  map[string]facts          // by interface
	firsts map[string]firstInterface // by machine
}

// groupsOfVPC holds the security groups that Config.SecurityGroupTags selects in a VPC.
type groupsOfVPC struct {
	ids  []string
	read time.Time
}

// New returns a Cloud. It sends no request to EC2.
func New(ctx context.Context, c Config) (*Cloud, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	options := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
	}
	if c.Credentials != nil {
		options = append(options, awsconfig.WithCredentialsProvider(c.Credentials))
	}
	if c.Region != "" {
		options = append(options, awsconfig.WithRegion(c.Region))
	}
	loaded, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("open EC2: load the configuration of the AWS SDK: %w", err)
	}
	metadata := imds.New(imds.Options{Endpoint: c.MetadataEndpoint, Retryer: aws.NopRetryer{}})
	if loaded.Region == "" {
		answer, err := metadata.GetRegion(ctx, &imds.GetRegionInput{})
		if err != nil {
			return nil, fmt.Errorf("open EC2: no region is configured, and the machine does not tell one "+
				"(want --ec2-region, such as eu-central-1, or AWS_REGION): %w", err)
		}
		loaded.Region = answer.Region
	}
	return &Cloud{
		config: c,
		ec2: ec2.NewFromConfig(loaded, func(o *ec2.Options) {
			o.Retryer = aws.NopRetryer{}
			o.HTTPClient = &http.Client{Transport: bodies{c.Transport}}
			if c.Endpoint != "" {
				o.BaseEndpoint = aws.String(c.Endpoint)
			}
		}),
		imds:   metadata,
		pause:  backoff.Policy{First: c.FirstPause, Limit: 10 * c.FirstPause, Random: c.Random},
		types:  map[string]typeLimits{},
		vpcs:   map[string]vpcRanges{},
		groups: map[string]groupsOfVPC{},
		facts:  map[string]facts{},
		firsts: map[string]firstInterface{},
	}, nil
}

// Name implements cloud.Cloud.
func (c *Cloud) Name() string { return Name }

// Self implements cloud.Self: it asks the instance metadata service.
func (c *Cloud) Self(ctx context.Context) (string, error) {
	answer, err := c.imds.GetMetadata(ctx, &imds.GetMetadataInput{Path: "instance-id"})
	if err != nil {
		return "", fmt.Errorf("ask the instance metadata service for the instance's ID "+
			"(it must be enabled, and its hop limit must reach the agent): %w", err)
	}
	defer answer.Content.Close()
	id, err := io.ReadAll(io.LimitReader(answer.Content, 256))
	if err == nil && len(id) == 0 {
		err = errors.New("the answer is empty")
	}
	if err != nil {
		return "", fmt.Errorf("read the instance's ID from the instance metadata service: %w", err)
	}
	return string(id), nil
}

// wait pauses after so many failed attempts.
func (c *Cloud) wait(ctx context.Context, failures int) error {
	timer := time.NewTimer(c.pause.After(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// attempts bounds the repetition of one request within a call.
const attempts = 4

// repeat sends a request until it succeeds, its error is final, or the attempts are used up.
// The request must be idempotent.
func (c *Cloud) repeat(ctx context.Context, request func(context.Context) error) error {
	return c.repeatUpTo(ctx, attempts, request)
}

func (c *Cloud) repeatUpTo(ctx context.Context, most int, request func(context.Context) error) error {
	for failures := 1; ; failures++ {
		err := request(ctx)
		if err == nil || failures == most || !transient(err) || ctx.Err() != nil {
			return err
		}
		if c.wait(ctx, failures) != nil {
			return err
		}
	}
}
