// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// DeleteInterface implements cloud.Cloud: it detaches the interface, waits until EC2 shows it
// detached, and deletes it.
func (c *Cloud) DeleteInterface(ctx context.Context, instance, iface string) error {
	fail := func(err error) error {
		return fmt.Errorf("delete interface %s of machine %s: %w", iface, instance, err)
	}
	n, err := c.iface(ctx, iface)
	if code(err) == codeInterfaceNotFound {
		return nil
	}
	if err != nil {
		return fail(explain(err))
	}
	tags := tagMap(n.TagSet)
	if !c.owned(tags) {
		return fail(fmt.Errorf("it does not have the tags %s=%s and %s, so this cluster has not created it",
			TagCluster, c.config.Cluster, TagInstance))
	}
	switch a := n.Attachment; {
	case n.InterfaceType == types.NetworkInterfaceTypeTrunk, n.InterfaceType == types.NetworkInterfaceTypeEfa:
		return fail(
			fmt.Errorf("it is of type %s: want one of type %s", n.InterfaceType, types.NetworkInterfaceTypeInterface),
		)
	case a == nil:
	case aws.ToString(a.InstanceId) != instance:
		return fail(fmt.Errorf("it is attached to machine %s", aws.ToString(a.InstanceId)))
	case aws.ToInt32(a.DeviceIndex) == 0:
		return fail(errors.New("it is the machine's first interface"))
	}
	bounded, cancel := context.WithTimeout(ctx, c.config.DetachTimeout)
	defer cancel()
	if err := c.remove(bounded, iface); err != nil {
		return fail(explain(err))
	}
	return nil
}

// remove detaches and deletes an interface. It repeats its requests until they succeed, are
// refused, or ctx ends. An interface that is not there is removed.
func (c *Cloud) remove(ctx context.Context, id string) error {
	var last error
	for failures := 0; ; failures++ {
		if failures > 0 {
			if err := c.wait(ctx, failures); err != nil {
				return errors.Join(fmt.Errorf("wait until it is detached and deleted: %w", err), last)
			}
		}
		done, err := c.removeOnce(ctx, id)
		if done {
			return nil
		}
		if err != nil && !transient(err) && code(err) != codeInterfaceInUse && code(err) != codeParameterValue {
			return err
		}
		last = err
	}
}

// removeOnce takes the next step to remove an interface, and reports whether it is gone.
func (c *Cloud) removeOnce(ctx context.Context, id string) (done bool, err error) {
	n, err := c.iface(ctx, id)
	if code(err) == codeInterfaceNotFound { // or is not shown yet
		err = c.deleted(ctx, id)
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	if a := n.Attachment; a != nil && a.Status != types.AttachmentStatusDetached {
		if a.Status == types.AttachmentStatusDetaching {
			return false, nil
		}
		_, err := c.ec2.DetachNetworkInterface(ctx, &ec2.DetachNetworkInterfaceInput{AttachmentId: a.AttachmentId})
		if err != nil && code(err) != codeAttachmentNotFound {
			return false, fmt.Errorf("detach: %w", err)
		}
		return false, nil
	}
	if err := c.deleted(ctx, id); err != nil {
		return false, fmt.Errorf("delete: %w", err)
	}
	return true, nil
}

// deleted sends DeleteNetworkInterface. One that is not there is no error.
func (c *Cloud) deleted(ctx context.Context, id string) error {
	_, err := c.ec2.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id})
	if code(err) == codeInterfaceNotFound {
		return nil
	}
	return err
}

// DeleteOrphans implements cloud.Cloud. EC2 refuses to delete an interface that a machine
// has, so a reading that is too old does no harm. An interface whose tag does not tell its
// age is kept.
func (c *Cloud) DeleteOrphans(ctx context.Context, instance string, age time.Duration) ([]string, error) {
	filters := []types.Filter{
		filter("tag:"+TagCluster, c.config.Cluster),
		filter("status", string(types.NetworkInterfaceStatusAvailable)),
	}
	if instance != "" {
		filters = append(filters, filter("tag:"+TagInstance, instance))
	}
	found, err := c.interfaces(ctx, filters...)
	if err != nil {
		return nil, fmt.Errorf("look for orphaned interfaces of cluster %s: %w", c.config.Cluster, explain(err))
	}
	var deleted []string
	var errs []error
	for _, n := range found {
		id, tags := aws.ToString(n.NetworkInterfaceId), tagMap(n.TagSet)
		switch at := created(tags); {
		case n.Attachment != nil || n.Status != types.NetworkInterfaceStatusAvailable || !c.owned(tags):
			continue
		case at.IsZero():
			c.config.Log.Warn("orphaned interface is kept: its tag has no time", "interface", id, "tag", TagCreated,
				"value", tags[TagCreated])
			continue
		case c.config.Now().Sub(at) <= age:
			continue
		}
		err := c.deleted(ctx, id)
		switch {
		case err == nil:
			deleted = append(deleted, id)
		case code(err) == codeInterfaceInUse:
		default:
			errs = append(errs, fmt.Errorf("delete orphaned interface %s: %w", id, explain(err)))
		}
	}
	slices.Sort(deleted)
	return deleted, errors.Join(errs...)
}
