// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
	"github.com/cadastre/cadastre/southbound/linux"
)

// defaultCNIConfDir is the folder in which a runtime looks for its networks.
const defaultCNIConfDir = "/etc/cni/net.d"

// pluginPackage is the package of cadastre-cni, which its build information names.
const pluginPackage = "github.com/cadastre/cadastre/cmd/cadastre-cni"

// uninstallFunc removes what the agent has made in the kernel of this network namespace,
// and returns the names of what it removed.
type uninstallFunc func(ctx context.Context) (removed []string, err error)

// uninstallOptions holds the flags of uninstall.
type uninstallOptions struct {
	yes, dryRun, force                        bool
	config, runDir, stateDir, confDir, binDir string
}

// uninstalled is the output of uninstall.
type uninstalled struct {
	Removed bool     `json:"removed"`          // false: only shown
	List    string   `json:"list,omitempty"`   // path of the CNI list
	Plugin  string   `json:"plugin,omitempty"` // path of the CNI plugin
	Kernel  []string `json:"kernel,omitempty"` // objects of the kernel; empty if they are only shown
	Kept    []string `json:"kept,omitempty"`   // paths that stay
	InUse   []string `json:"inUse"`            // pods that run, and lose their network
}

func (a *app) uninstallCmd() *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the agent's traces from this node",
		Long: `uninstall removes what an agent leaves on its node when it ends, so that pods keep
their network meanwhile: the CNI list, what it made in the kernel (links, routes,
rules, and the nftables table "cadastre"), and the CNI plugin. Objects without
Cadastre's marks stay, and so does the database, which knows the addresses of this
node.

Pods that use the agent's links lose their network. uninstall names them, and
refuses to remove anything while one runs, or while an agent runs here, unless
--force is given. It changes nothing without --yes.

Exit codes: 0 removed, or with --dry-run shown; 1 failed, or shown; 4 refused,
or with --dry-run would be, because pods run.`,
		Example: `  cadastre uninstall          # shows what would be removed
  cadastre uninstall --yes`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.verb(func(ctx context.Context, _ []string) error { return a.uninstall(ctx, o) }),
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.yes, "yes", false, "remove, after showing what")
	flags.BoolVar(&o.dryRun, "dry-run", false, "only show what would be removed")
	flags.BoolVar(&o.force, "force", false,
		"also while pods use the agent's links, and while an agent runs, which makes again what it needs")
	flags.StringVar(&o.config, "config", defaultConfig, "the agent's configuration `FILE`, if it is still there")
	flags.StringVar(&o.runDir, "run-dir", "", "the agent's run `DIRECTORY` (default: that of its socket)")
	flags.StringVar(&o.stateDir, "state-dir", defaultStateDir, "the agent's state `DIRECTORY`")
	flags.StringVar(&o.confDir, "cni-conf-dir", "",
		"the `DIRECTORY` of the CNI list (default: that of the configuration, else "+defaultCNIConfDir+")")
	flags.StringVar(&o.binDir, "cni-bin-dir", "",
		"the `DIRECTORY` of the CNI plugin (default: that of the configuration)")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	return cmd
}

func (a *app) uninstall(ctx context.Context, o uninstallOptions) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	release, err := holdRunDir(cmp.Or(o.runDir, filepath.Dir(a.socketPath())))
	if err != nil && o.yes && !o.force {
		return fmt.Errorf("uninstall: %w", err)
	}
	defer release()
	r, err := o.find()
	if err == nil {
		if r.InUse, err = a.usesOfKernel(); o.force { // who uses it does not matter
			err = nil
		}
	}
	refused := len(r.InUse) > 0 && !o.force
	if err == nil && o.yes && !refused {
		r.Removed = true
		err = a.remove(ctx, &r, o)
	}
	if perr := a.print(r, func(bool) string { return cleanLines(uninstalledText(r)) }); perr != nil {
		return errors.Join(err, perr)
	}
	switch {
	case err != nil:
		return fmt.Errorf("uninstall: %w", err)
	case refused && (o.yes || o.dryRun):
		return refusedInUse("nothing was removed")
	case !o.yes && !o.dryRun:
		return &exitError{code: exitFailed}
	}
	return nil
}

// complete takes the folders that no flag names from the agent's configuration.
func (o *uninstallOptions) complete() error {
	conf := contivconf.Default()
	if _, err := os.Stat(o.config); err == nil {
		if conf, _, err = contivconf.Load(o.config); err != nil {
			return fmt.Errorf(
				"%w: name the folders with --cni-conf-dir and --cni-bin-dir, and no file with --config ''",
				err,
			)
		}
	} else if o.config != "" && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, x := range []struct {
		flag  *string
		value string
	}{
		{&o.confDir, conf.Cadastre.CNI.ConfDir},
		{&o.confDir, defaultCNIConfDir},
		{&o.binDir, conf.Cadastre.CNI.BinDir},
	} {
		if *x.flag == "" {
			*x.flag = x.value
		}
	}
	return nil
}

// holdRunDir keeps an agent from starting, and fails if one runs.
func holdRunDir(dir string) (release func(), err error) {
	release = func() {}
	path := filepath.Join(dir, cni.LockFile)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return release, nil // no agent has run since the machine was booted
	}
	if err != nil {
		return release, err
	}
	release = func() { _ = f.Close() }
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("an agent runs on this node (%s is locked) and would make again what is removed: "+
			"stop it first; with Kubernetes, delete the DaemonSet cadastre-agent", path)
	}
	return release, err
}

// find looks for the files that would be removed.
func (o *uninstallOptions) find() (r uninstalled, err error) {
	list := filepath.Join(o.confDir, conflist.FileName)
	switch data, err := os.ReadFile(list); {
	case err == nil && conflist.IsOurs(data):
		r.List = list
	case err == nil:
		r.Kept = append(r.Kept, list+", the list of another plugin")
	case !errors.Is(err, fs.ErrNotExist):
		return r, err
	}
	plugin := filepath.Join(o.binDir, cni.PluginType)
	switch info, err := buildinfo.ReadFile(plugin); {
	case err == nil && info.Path == pluginPackage:
		r.Plugin = plugin
	case !errors.Is(err, fs.ErrNotExist):
		r.Kept = append(r.Kept, plugin+", which is not a program of this project")
	}
	if _, err := os.Stat(filepath.Join(o.stateDir, databaseName)); err == nil {
		r.Kept = append(r.Kept, o.stateDir+", the leases of this node: an agent that starts again goes on with them")
	}
	return r, nil
}

// remove removes the list first, so that the runtime starts no further pod.
func (a *app) remove(ctx context.Context, r *uninstalled, o uninstallOptions) error {
	var errs []error
	if r.List != "" {
		_, err := conflist.Remove(o.confDir)
		errs = append(errs, err)
	}
	removed, err := a.uninstallKernel(ctx)
	r.Kernel = removed
	errs = append(errs, err)
	if r.Plugin != "" {
		errs = append(errs, os.Remove(r.Plugin))
	}
	return errors.Join(errs...)
}

// uninstallKernel removes what the southbound has made in this network namespace.
func uninstallKernel(ctx context.Context) (removed []string, err error) {
	return linux.Uninstall(ctx, linux.Options{})
}

// usesOfKernel describes the pods that run with links of the southbound.
func usesOfKernel() (all []string, err error) {
	wires, err := linux.LivingWires(linux.Options{})
	all = []string{}
	for _, w := range wires {
		addrs := strings.Join(each(w.Addrs, netip.Addr.String), " and ")
		all = append(all, fmt.Sprintf("%s is used by %s through link %s: the pod loses its network",
			cmp.Or(addrs, "no address"), w.Attachment, w.Link))
	}
	return all, err
}

func uninstalledText(r uninstalled) string {
	verb := "to remove"
	if r.Removed {
		verb = "removed"
	}
	var g columns.Rows
	for _, path := range []string{r.List, r.Plugin} {
		if path != "" {
			g.Add(verb, path)
		}
	}
	for _, name := range r.Kernel {
		g.Add(verb, name)
	}
	if !r.Removed {
		g.Add(verb, "links, routes, rules and tables with Cadastre's marks, if there are any")
	} else if len(r.Kernel) == 0 {
		g.Add("", "the kernel has nothing of an agent")
	}
	for _, kept := range r.Kept {
		g.Add("stays", kept)
	}
	text := g.String()
	if len(r.InUse) > 0 {
		text = strings.TrimRight(text, "\n") + "\nin use now:\n  " + strings.Join(r.InUse, "\n  ") + "\n"
	}
	if !r.Removed {
		text = strings.TrimRight(text, "\n") + "\nnothing was changed: to remove this, repeat with --yes\n"
	}
	return text
}
