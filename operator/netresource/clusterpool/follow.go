// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package clusterpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource/objects"
)

// Follow passes the API server's AddressPools to the provider, and writes their status
// after each interval, until then has returned. It calls then when it has seen all
// AddressPools that there are.
func (p *Provider) Follow(
	ctx context.Context,
	client dynamic.Interface,
	every time.Duration,
	log *slog.Logger,
	then func(context.Context) error,
) error {
	set := func(o any) {
		pool, err := objects.Decode[v1alpha1.AddressPool](o)
		if err == nil {
			err = p.SetPool(pool)
		}
		if err != nil {
			log.Warn("use an AddressPool: a part of it is not used", "error", err)
		}
	}
	return objects.Follow(
		ctx,
		objects.InformerOf(client, v1alpha1.Resource(v1alpha1.AddressPools)),
		cache.ResourceEventHandlerFuncs{
			AddFunc:    set,
			UpdateFunc: func(_, o any) { set(o) },
			DeleteFunc: func(o any) {
				if pool, err := objects.Decode[v1alpha1.AddressPool](o); err == nil {
					p.RemovePool(pool.Name)
				}
			},
		},
		func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			var work sync.WaitGroup
			defer work.Wait()
			defer cancel()
			work.Go(func() { p.report(ctx, client, every, log) })
			return then(ctx)
		},
	)
}

// report writes the status of all pools after each interval.
func (p *Provider) report(ctx context.Context, client dynamic.Interface, every time.Duration, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := p.writeStatus(ctx, client); err != nil && ctx.Err() == nil {
			log.Warn("write the status of AddressPools", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// writeStatus writes each status that has changed. A pool that cannot be written delays no
// other one.
func (p *Provider) writeStatus(ctx context.Context, client dynamic.Interface) error {
	pools := client.Resource(v1alpha1.Resource(v1alpha1.AddressPools))
	all, err := pools.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list AddressPools: %w", err)
	}
	var failed []error
	for i := range all.Items {
		pool, err := objects.Decode[v1alpha1.AddressPool](&all.Items[i])
		if err != nil {
			failed = append(failed, err)
			continue
		}
		status := p.Status(pool.Name)
		if status == pool.Status {
			continue
		}
		pool.Status = status
		u, err := objects.Encode(pool, "AddressPool")
		if err == nil {
			_, err = pools.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("write the status of AddressPool %s: %w", pool.Name, err))
		}
	}
	return errors.Join(failed...)
}
