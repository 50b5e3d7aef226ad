// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	stack "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/backoff"
)

// Name is the name of the cloud, in messages and metrics.
const Name = "openstack"

// Cloud is one project of an OpenStack cloud. Use New.
type Cloud struct {
	config  Config
	network *gophercloud.ServiceClient
	compute *gophercloud.ServiceClient // nil: ports are attached by Neutron alone
	http    *http.Client               // for the metadata service, outside of the budget
	retry   backoff.Policy

	mu    sync.Mutex
	known map[string]*networkState // by ID of the network
}

// New authenticates and finds the endpoints of Neutron and Nova.
func New(ctx context.Context, c Config) (*Cloud, error) {
	c, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("configure OpenStack: %w", err)
	}
	made := &Cloud{
		config: c,
		http:   &http.Client{Timeout: 10 * time.Second},
		retry:  backoff.Policy{First: 50 * time.Millisecond, Limit: 2 * time.Second, Random: random(c.Random)},
		known:  map[string]*networkState{},
	}
	if c.Endpoint != "" {
		made.network = withoutAuthentication(c.Endpoint, http.Client{Transport: made.transport(nil)})
		return made, nil
	}
	if err := made.authenticate(ctx); err != nil {
		return nil, fmt.Errorf("authenticate at OpenStack: %w", err)
	}
	return made, nil
}

func random(below func(n uint64) uint64) func() float64 {
	const parts = 1 << 20
	return func() float64 { return float64(below(parts)) / parts }
}

func withoutAuthentication(url string, client http.Client) *gophercloud.ServiceClient {
	url = strings.TrimSuffix(url, "/")
	return &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{HTTPClient: client},
		Endpoint:       url + "/",
		ResourceBase:   url + "/v2.0/",
	}
}

// authenticate signs in with clouds.yaml if OS_CLOUD is set, otherwise with the variables OS_*.
func (c *Cloud) authenticate(ctx context.Context) error {
	auth, endpoint, secure, err := credentials()
	if err != nil {
		return err
	}
	auth.AllowReauth = true // tokens expire
	budgeted := config.WithHTTPClient(http.Client{Transport: c.transport(secure)})
	client, err := config.NewProviderClient(ctx, auth, budgeted)
	if err != nil {
		return err
	}
	if c.network, err = stack.NewNetworkV2(client, endpoint); err != nil {
		return fmt.Errorf("find Neutron: %w", err)
	}
	if c.config.AttachByNeutron {
		return nil
	}
	if c.compute, err = stack.NewComputeV2(client, endpoint); err != nil {
		return fmt.Errorf("find Nova (ports can also be attached by Neutron alone): %w", err)
	}
	return nil
}

func credentials() (gophercloud.AuthOptions, gophercloud.EndpointOpts, *tls.Config, error) {
	if os.Getenv("OS_CLOUD") != "" {
		return clouds.Parse()
	}
	auth, err := stack.AuthOptionsFromEnv()
	if err != nil {
		return auth, gophercloud.EndpointOpts{}, nil, fmt.Errorf(
			"OS_CLOUD is not set, and of the variables OS_*: %w",
			err,
		)
	}
	endpoint := gophercloud.EndpointOpts{
		Region:       os.Getenv("OS_REGION_NAME"),
		Availability: availability(os.Getenv("OS_INTERFACE")),
	}
	secure, err := authorities(os.Getenv("OS_CACERT"))
	return auth, endpoint, secure, err
}

func availability(text string) gophercloud.Availability {
	switch strings.TrimSuffix(text, "URL") {
	case "internal":
		return gophercloud.AvailabilityInternal
	case "admin":
		return gophercloud.AvailabilityAdmin
	}
	return gophercloud.AvailabilityPublic
}

// authorities returns the TLS configuration with the authorities of a file; nil without a file.
func authorities(path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // there is no configuration
	}
	text, err := os.ReadFile(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, fmt.Errorf("read OS_CACERT: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read OS_CACERT %s: want PEM certificates", path)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// transport returns the way of all requests: through the budget.
func (c *Cloud) transport(secure *tls.Config) http.RoundTripper {
	base := c.config.Transport
	if base == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		if secure != nil {
			own.TLSClientConfig = secure
		}
		base = own
	}
	if c.config.Budget == nil {
		return base
	}
	return c.config.Budget.Transport(base, operation)
}

// operation names a request for the metrics: its method and the kind of its object.
func operation(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for _, kind := range []string{"tags", "os-interface", "ports", "subnets", "subnetpools", "servers", "tokens"} {
		for _, p := range parts {
			if p == kind {
				return r.Method + " " + kind
			}
		}
	}
	return r.Method
}

// Name implements cloud.Cloud.
func (c *Cloud) Name() string { return Name }

// failure returns err with the errors of package cloud that it stands for.
func failure(err error) error {
	switch {
	case err == nil:
		return nil
	case has(err, http.StatusTooManyRequests), has(err, http.StatusRequestEntityTooLarge),
		has(err, http.StatusServiceUnavailable):
		return fmt.Errorf("%w: %w", cloud.ErrThrottled, err)
	case isKind(err, exhausted, "OverQuota", "AllowedAddressPairExhausted", "PortLimitExceeded"):
		return fmt.Errorf("%w: %w", cloud.ErrFull, err)
	}
	return err
}

// Kinds of Neutron's errors.
const (
	exhausted = "IpAddressGenerationFailure"
	inUse     = "IpAddressAlreadyAllocated"
)

func has(err error, status int) bool { return gophercloud.ResponseCodeIs(err, status) }

func isKind(err error, kinds ...string) bool {
	var answer gophercloud.ErrUnexpectedResponseCode
	if !errors.As(err, &answer) {
		return false
	}
	for _, k := range kinds {
		if strings.Contains(string(answer.Body), `"`+k+`"`) {
			return true
		}
	}
	return false
}

// certain reports whether err proves that the request changed nothing: the cloud refused it.
func certain(err error) bool {
	var answer gophercloud.ErrUnexpectedResponseCode
	return errors.As(err, &answer) && answer.Actual >= 400 && answer.Actual < 500 &&
		answer.Actual != http.StatusRequestTimeout
}
