// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/operator/runner"
)

type electOptions struct {
	enabled                                   bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
	name, namespace                           string
}

// register defines the flags of the election.
func (e *electOptions) register(fs *pflag.FlagSet) {
	fs.BoolVar(
		&e.enabled,
		flagElect,
		true,
		"run controllers only while holding the lease; if false, no other operator may run",
	)
	fs.DurationVar(
		&e.leaseDuration,
		flagLeaseDuration,
		15*time.Second,
		"how long candidates wait for a leader that does not renew its lease",
	)
	fs.DurationVar(
		&e.renewDeadline,
		flagRenewDeadline,
		10*time.Second,
		"how long the leader tries to renew its lease before it stops",
	)
	fs.DurationVar(&e.retryPeriod, flagRetryPeriod, 2*time.Second, "retry and observation period of the election")
	fs.StringVar(&e.name, flagLeaseName, "cadastre-operator", "the `name` of the Lease")
	fs.StringVar(&e.namespace, flagLeaseNamespace, "kube-system", "the `namespace` of the Lease")
}

// election returns the election of the options, nil for none.
func (e electOptions) election(c clients) *runner.Election {
	if !e.enabled {
		return nil
	}
	return &runner.Election{
		Leases:        c.leases,
		Namespace:     e.namespace,
		Name:          e.name,
		LeaseDuration: e.leaseDuration,
		RenewDeadline: e.renewDeadline,
		RetryPeriod:   e.retryPeriod,
	}
}

func (e electOptions) validate(p *problems) {
	if !e.enabled {
		return
	}
	if e.leaseDuration < time.Second {
		p.add(flagLeaseDuration, e.leaseDuration, "it must be at least 1s")
	}
	if e.renewDeadline >= e.leaseDuration {
		p.add(
			flagRenewDeadline,
			e.renewDeadline,
			"it must be less than --%s, which is %s",
			flagLeaseDuration,
			e.leaseDuration,
		)
	}
	if e.retryPeriod <= 0 {
		p.add(flagRetryPeriod, e.retryPeriod, "it must be more than 0")
	}
	if least := time.Duration(leaderelection.JitterFactor * float64(e.retryPeriod)); e.renewDeadline <= least {
		p.add(
			flagRenewDeadline,
			e.renewDeadline,
			"it must be more than %v times --%s, which is %s",
			leaderelection.JitterFactor,
			flagRetryPeriod,
			e.retryPeriod,
		)
	}
	if e.name == "" {
		p.add(flagLeaseName, `""`, "it must be the name of a Lease, such as cadastre-operator")
	}
	if e.namespace == "" {
		p.add(flagLeaseNamespace, `""`, "it must be the name of a namespace, such as kube-system")
	}
}
