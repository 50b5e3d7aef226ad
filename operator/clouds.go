// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// flagCloud is the name of upstream's flag that selects the cloud of node CIDRs.
const flagCloud = "cloud-provider"

// cloudExternal is upstream's value for a cloud that another program serves.
const cloudExternal = "external"

// programOf returns the name of the program that has the cloud, "" if none of this
// project has it.
func programOf(name string) string {
	switch name {
	case "openstack", "ec2":
		return "cadastre-operator-" + name
	case "aws":
		return "cadastre-operator-ec2"
	}
	return ""
}

// aliasProgram is the program for node CIDRs that a cloud routes.
const aliasProgram = "cadastre-operator-openstack"

// checkProviders returns an error if the main of the program has added providers that do
// not fit.
func checkProviders(all []Provider) error {
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	names := []string{providerClusterPool, cloudExternal}
	for _, p := range all {
		switch {
		case !label.MatchString(p.Name):
			return fmt.Errorf("add provider %q: want a name of lower-case letters, digits and hyphens", p.Name)
		case slices.Contains(names, p.Name):
			return fmt.Errorf("add provider %q: the name is taken: want another one", p.Name)
		case p.Open == nil:
			return fmt.Errorf("add provider %q: it has no function Open", p.Name)
		}
		names = append(names, p.Name)
	}
	return nil
}

// registerProviders defines the flags of the providers.
func (o *commandLine) registerProviders(fs *pflag.FlagSet) (err error) {
	if err := checkProviders(o.providers); err != nil {
		return err
	}
	o.ofProvider = map[string][]string{}
	for _, p := range o.providers {
		own := pflag.NewFlagSet(p.Name, pflag.ContinueOnError)
		if p.Flags != nil {
			p.Flags(own)
		}
		own.VisitAll(func(f *pflag.Flag) {
			taken := fs.Lookup(f.Name) != nil || f.Shorthand != "" && fs.ShorthandLookup(f.Shorthand) != nil
			if taken {
				err = fmt.Errorf("add provider %q: its flag --%s is a flag of the program: want --%s-%s",
					p.Name, f.Name, p.Name, f.Name)
				return
			}
			fs.AddFlag(f)
			o.ofProvider[p.Name] = append(o.ofProvider[p.Name], f.Name)
		})
	}
	return err
}

// unused is a given flag that has no effect.
type unused struct{ flag, value, reason string }

// unusedFlags returns the given flags of clouds that nothing opens.
func (o *commandLine) unusedFlags() (all []unused) {
	pools, aliases := o.openedClouds()
	for _, p := range o.providers {
		if p.Name == pools || p.Name == aliases {
			continue
		}
		for _, name := range o.ofProvider[p.Name] {
			if f := o.flags.Lookup(name); f.Changed {
				reason := "no controller that runs uses the cloud " + p.Name
				all = append(all, unused{name, f.Value.String(), reason})
			}
		}
	}
	if o.cloud != "" && !o.needsAliases() {
		all = append(all, unused{flagCloud, o.cloud, "node CIDRs are not those of a cloud"})
	}
	return all
}

// openedClouds returns the names of the providers that the options select for pools and for
// node CIDRs; "" for none.
func (o *commandLine) openedClouds() (pools, aliases string) {
	run := o.plan().run
	if name := o.netresource.provider; slices.Contains(run, controllerNetResource) && name != providerClusterPool {
		pools = name
	}
	if slices.Contains(run, controllerNodeIPAM) && o.needsAliases() {
		aliases = o.aliasCloud()
	}
	return pools, aliases
}

// provider returns the provider of a name, nil if the program has none.
func (o *commandLine) provider(name string) *Provider {
	i := slices.IndexFunc(o.providers, func(p Provider) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &o.providers[i]
}

// cloudNames returns the names of the providers.
func (o *commandLine) cloudNames() (all []string) {
	for _, p := range o.providers {
		all = append(all, p.Name)
	}
	return all
}

// poolProviders returns the values of --netresource-provider.
func (o *commandLine) poolProviders() []string {
	return append([]string{providerClusterPool}, o.cloudNames()...)
}

// poolHelp describes the values of --netresource-provider.
func (o *commandLine) poolHelp() string {
	all := []string{providerClusterPool + " (blocks of AddressPools)"}
	for _, p := range o.providers {
		all = append(all, p.Name+" ("+p.Help+")")
	}
	return strings.Join(all, ", ")
}

// validateSource refuses flags of one source of addresses that are given with another one.
func (o *commandLine) validateSource(p *problems) {
	without := []string{flagPoolCoolDown}
	if o.provider(o.netresource.provider) == nil {
		without = []string{flagIPv4, flagIPv6, flagPrefixes, flagConsistency, flagOrphanAge}
	}
	for _, name := range without {
		if o.netresource.provider != "" && o.flags.Changed(name) {
			p.add(name, o.flags.Lookup(name).Value, "it has no effect with --%s=%s: remove it",
				flagProvider, o.netresource.provider)
		}
	}
}

// aliasCloud returns the name of the cloud that --cloud-provider selects for node CIDRs:
// the program's only one if the flag names none.
func (o *commandLine) aliasCloud() string {
	switch {
	case o.cloud != "" && o.cloud != cloudExternal:
		return o.cloud
	case len(o.providers) == 1:
		return o.providers[0].Name
	}
	return ""
}

// needsAliases reports whether the type of the CIDR allocator needs a cloud.
func (o *commandLine) needsAliases() bool {
	switch nodeipam.CIDRAllocatorType(o.nodeipam.Type) {
	case nodeipam.CloudAllocatorType,
		nodeipam.IPAMFromClusterAllocatorType,
		nodeipam.IPAMFromCloudAllocatorType:
		return o.nodeipam.Allocate
	}
	return false
}

// validateAliases checks that the program has the cloud for the type of the CIDR allocator.
func (o *commandLine) validateAliases(p *problems) {
	if !o.needsAliases() {
		return
	}
	name := o.aliasCloud()
	switch {
	case len(o.providers) == 0:
		p.add(
			nodeipam.FlagType,
			o.nodeipam.Type,
			"this program has no cloud: want %s, or run %s",
			nodeipam.RangeAllocatorType,
			aliasProgram,
		)
	case name == "":
		p.add(
			nodeipam.FlagType,
			o.nodeipam.Type,
			"the program has several clouds: give --%s, one of %s",
			flagCloud,
			strings.Join(o.cloudNames(), ", "),
		)
	case o.provider(name) == nil:
		p.add(flagCloud, name, "this program does not have this cloud: want %s%s",
			strings.Join(o.cloudNames(), ", "), orProgram(name))
	}
}

// orProgram returns the end of an error: the program that has a cloud.
func orProgram(name string) string {
	if program := programOf(name); program != "" {
		return ", or run " + program
	}
	return ""
}

// openClouds opens the providers that the options select.
func (p *operator) openClouds(ctx context.Context) error {
	pools, aliases := p.options.openedClouds()
	for _, name := range slices.Compact([]string{pools, aliases}) {
		if name == "" {
			continue
		}
		opened, err := p.openCloud(ctx, name)
		if err != nil {
			return fmt.Errorf("open provider %s: %w", name, err)
		}
		if name == pools {
			if p.cloud = opened.Cloud; p.cloud == nil {
				return fmt.Errorf("--%s=%s: the provider has no interfaces of machines: want %s",
					flagProvider, name, providerClusterPool)
			}
		}
		if name == aliases {
			if p.aliases = opened.Aliases; p.aliases == nil {
				return fmt.Errorf("--%s=%s: provider %s does not route prefixes to machines: want %s, or run %s",
					nodeipam.FlagType, p.options.nodeipam.Type, name, nodeipam.RangeAllocatorType, aliasProgram)
			}
		}
	}
	return nil
}

// openCloud opens a provider and registers its metrics.
func (p *operator) openCloud(ctx context.Context, name string) (Opened, error) {
	opened, err := p.options.provider(name).Open(ctx, Environment{
		Log:   p.log.With("provider", name),
		QPS:   p.options.netresource.qps,
		Burst: p.options.netresource.burst,
	})
	if err != nil {
		return Opened{}, err
	}
	for _, c := range opened.Collectors {
		if err := p.registry.Register(c); err != nil {
			return Opened{}, fmt.Errorf("register its metrics: %w", err)
		}
	}
	return opened, nil
}
