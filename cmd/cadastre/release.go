// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// releaseFlags are the flags of release.
type releaseFlags struct {
	localapi.ReleaseRequest
	namespace string // of --pod, if that is only a name
	yes       bool
	dryRun    bool
}

// check wants exactly one selector, and makes the address one as the agent
// writes it.
func (f *releaseFlags) check() (err error) {
	given := 0
	for _, s := range []string{f.IP, f.ContainerID, f.Pod} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return usagef("release wants exactly one of --ip, --container and --pod, but has %d of them", given)
	case f.IfName != "" && f.ContainerID == "":
		return usagef("--if: %q goes with --container only", f.IfName)
	case f.DockerPool != "" && f.IP == "":
		return usagef("--docker-pool: %q goes with --ip only", f.DockerPool)
	case f.namespace != "" && f.Pod == "":
		return usagef("--namespace: %q goes with --pod only", f.namespace)
	case f.Pod != "":
		f.Pod, err = fullPod(f.Pod, f.namespace)
		return err
	case f.IP != "":
		addr, err := netip.ParseAddr(f.IP)
		if err != nil || addr.Zone() != "" {
			return usagef("--ip: %q is not an address: write one without prefix length or zone, such as 10.1.5.2", f.IP)
		}
		f.IP = addr.Unmap().String()
	}
	return nil
}

// matches reports whether the agent would select the lease.
func (f *releaseFlags) matches(l localapi.Lease) bool {
	switch {
	case f.IP != "":
		return l.IP == f.IP
	case f.Pod != "":
		return podOf(l) == f.Pod
	}
	return l.ContainerID == f.ContainerID && (f.IfName == "" || l.IfName == f.IfName)
}

func (a *app) releaseCmd() *cobra.Command {
	var f releaseFlags
	cmd := &cobra.Command{
		Use:   "release {--ip ADDRESS [--docker-pool ID] | --container ID [--if NAME] | --pod NAMESPACE/NAME}",
		Short: "Release addresses of a container or pod that has ended",
		Long: `release frees the addresses of a container or pod that has ended without a DEL of
its runtime. It lists them and asks first, and then frees exactly the listed ones.
The agent reads all witnesses before, and refuses (exit code 4) if one of the
addresses is in use, or a witness cannot be read completely, unless --force is given.

Docker releases its addresses itself. If the engine has lost a container, --ip with
--docker-pool releases its address; a gateway ends with its pool ("cadastre docker
pools release").`,
		Example: `  cadastre release --pod default/web
  cadastre release --pod default/web --dry-run
  cadastre release --ip 10.1.5.9 --quarantined --yes
  cadastre release --ip 10.50.0.2 --docker-pool LocalDefault/10.50.0.0/24`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.release(ctx, &f)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.IP, "ip", "", "the lease of this `ADDRESS`")
	flags.StringVar(&f.ContainerID, "container", "", "the leases of the container with this whole `ID`")
	flags.StringVar(&f.IfName, "if", "", "with --container: only the interface of this `NAME`")
	flags.StringVar(&f.Pod, "pod", "", "the leases of this pod, `NAMESPACE/NAME`")
	addNamespace(cmd, &f.namespace, "the `NAMESPACE` of --pod")
	flags.StringVar(
		&f.DockerPool,
		"docker-pool",
		"",
		"with --ip: the `ID` of Docker's pool that has the address, as cadastre docker pools lists it",
	)
	flags.BoolVar(&f.Quarantined, "quarantined", false, "quarantined ones too")
	flags.BoolVar(&f.Force, "force", false, forceInUse)
	flags.BoolVar(&f.dryRun, "dry-run", false, "only show what would be released, and what is in use")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	for _, name := range []string{"ip", "docker-pool", "container", "if", "pod"} {
		completeValues(cmd, name)
	}
	return cmd
}

func (a *app) release(ctx context.Context, f *releaseFlags) error {
	c := a.client()
	would, err := c.release(ctx, f, nil)
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if len(would.Leases) == 0 {
		return a.nothingToRelease(ctx, f, would)
	}
	if f.dryRun || would.Refused != "" && !f.Force {
		return a.showOnly(would, f.Force)
	}
	if err := a.showRelease(would, f.yes); err != nil {
		return err
	}
	if !f.yes {
		if err := a.confirm(ctx, len(would.Leases)); err != nil {
			return err
		}
	}
	done, err := c.release(ctx, f, would.Leases)
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if done.Refused != "" { // an address has come into use since it was listed
		return a.showOnly(done, f.Force)
	}
	if err := a.print(done, func(bool) string { return releasedText(done) }); err != nil {
		return err
	}
	if len(done.Leases) < len(would.Leases) {
		return fmt.Errorf(
			"release: %d of %s were released: the other ones have changed since they were listed",
			len(done.Leases),
			plural(len(would.Leases), "address", "addresses"),
		)
	}
	return nil
}

// showOnly shows what would be released, and fails if the agent would refuse that.
func (a *app) showOnly(would localapi.ReleaseReply, force bool) error {
	if err := a.print(would, func(wide bool) string { return a.releaseText(would, wide) }); err != nil {
		return err
	}
	if would.Refused != "" && !force {
		return refusedInUse("nothing was released")
	}
	return nil
}

// release asks what would be released, or releases only those.
func (c *client) release(ctx context.Context, f *releaseFlags, only []localapi.Lease) (localapi.ReleaseReply, error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	req := f.ReleaseRequest
	req.DryRun = only == nil
	for _, l := range only {
		req.Only = append(req.Only, l.Generation)
	}
	reply := localapi.ReleaseReply{}
	err := c.postInUse(ctx, localapi.PathRelease, req, &reply)
	if reply.Leases == nil {
		reply.Leases = []localapi.Lease{}
	}
	return reply, err
}

// nothingToRelease returns an error only if an address was named that is still not free.
func (a *app) nothingToRelease(ctx context.Context, f *releaseFlags, would localapi.ReleaseReply) error {
	if len(would.Skipped) > 0 {
		found, err := a.getLeases(ctx, f.matches)
		if err != nil {
			return fmt.Errorf("release: %w", err)
		}
		if slices.ContainsFunc(found, func(l localapi.Lease) bool { return l.State != "cooling" }) {
			hint := ""
			if !f.Quarantined &&
				slices.ContainsFunc(found, func(l localapi.Lease) bool { return l.State == "quarantined" }) {
				hint = "\nquarantined ones are released with --quarantined"
			}
			return errors.New("nothing was released: " + strings.Join(would.Skipped, "; ") + hint)
		}
	}
	where := ""
	if f.IP != "" && len(would.Skipped) == 0 {
		var err error
		if where, err = a.unleased(ctx, f.IP); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return a.print(would, func(bool) string {
		text := "nothing to release" + where
		for _, s := range would.Skipped {
			text += "\n" + columns.Clean(s)
		}
		if f.ContainerID != "" && len(would.Skipped) == 0 {
			text += ": no container has this whole ID (see cadastre leases -o wide)"
		}
		return text + "\n"
	})
}

// unleased describes an address without a lease: free, or of no block of this node.
func (a *app) unleased(ctx context.Context, ip string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var s localapi.Status
	if err := a.client().get(ctx, localapi.PathStatus, &s); err != nil {
		return "", err
	}
	addr := netip.MustParseAddr(ip) // check has read it
	for _, b := range s.Blocks {
		if p, err := netip.ParsePrefix(b.Block); err == nil && p.Contains(addr) {
			return fmt.Sprintf(": %s of pool %s is not leased", ip, columns.Clean(b.Pool)), nil
		}
	}
	return fmt.Sprintf(
		": %s is in no block of this node %s (see cadastre node list for those of others)",
		ip,
		columns.Clean(s.NodeName),
	), nil
}

// showRelease lists the leases that are about to be released. If the output is for
// programs, the list goes to the user who is asked, if there is a question.
func (a *app) showRelease(would localapi.ReleaseReply, yes bool) error {
	text := a.releaseText(would, a.output == formatWide)
	switch {
	case a.forPeople():
		return a.write([]byte(text))
	case !yes:
		fmt.Fprint(a.stderr, text)
	}
	return nil
}

// releaseText lists the leases that would be released, those that would not, and what is in
// use.
func (a *app) releaseText(would localapi.ReleaseReply, wide bool) string {
	text := a.leasesTable(would.Leases, wide)
	for _, s := range would.Skipped {
		text += "not released: " + columns.Clean(s) + "\n"
	}
	return text + inUseText(would.InUse)
}

func releasedText(done localapi.ReleaseReply) string {
	ips := make([]string, len(done.Leases))
	for i, l := range done.Leases {
		ips[i] = columns.Clean(l.IP)
	}
	return fmt.Sprintf("released %s: %s\n", plural(len(ips), "address", "addresses"), strings.Join(ips, ", "))
}

// confirm asks whether n addresses are to be released.
func (a *app) confirm(ctx context.Context, n int) error {
	if n == 1 {
		return a.ask(ctx, "Release this address? [y/N] ")
	}
	return a.ask(ctx, fmt.Sprintf("Release these %d addresses? [y/N] ", n))
}

// ask fails unless the question is answered with yes.
func (a *app) ask(ctx context.Context, question string) error {
	if a.agreed(ctx, bufio.NewReader(a.stdin), question) {
		return nil
	}
	return errors.New("nothing was released")
}

// agreed reports whether the next line of answers is a yes. An interrupt is a no.
func (a *app) agreed(ctx context.Context, answers *bufio.Reader, question string) bool {
	fmt.Fprint(a.stderr, question)
	answer := make(chan string, 1)
	go func() { // ends with the process if there is no answer
		line, _ := answers.ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return false
	case said := <-answer:
		return said == "y" || said == "yes"
	}
}
