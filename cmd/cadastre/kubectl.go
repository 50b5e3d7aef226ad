// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// kubectlName is the name under which kubectl finds this program as a plugin.
const kubectlName = "kubectl-cadastre"

// Names of the shipped manifests.
const (
	agentNamespace = "cadastre-system"
	agentSelector  = "app.kubernetes.io/name=cadastre-agent"
	agentContainer = "agent"
	agentCLI       = "/cadastre" // path in the agent's image
)

// kubectl holds the flags of the program as a plugin of kubectl: it asks the agent of a
// node through "kubectl exec".
type kubectl struct {
	plugin bool // the program was called as kubectl-cadastre
	node, namespace,
	context, kubeconfig string
}

// isPlugin reports whether the program was called by the name of kubectl's plugin.
func isPlugin(program string) bool {
	return strings.HasPrefix(filepath.Base(program), kubectlName)
}

// flags adds the flags of the plugin to the root command.
func (k *kubectl) flags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&k.node, "node", "", "ask the agent of this `NODE`; explain finds that of a pod or address")
	flags.StringVar(&k.namespace, "agent-namespace", agentNamespace, "the `NAMESPACE` of the agents")
	flags.StringVar(&k.context, "context", "", "the `CONTEXT` of the kubeconfig")
	flags.StringVar(&k.kubeconfig, "kubeconfig", "", "the kubeconfig `FILE`")
	for _, name := range []string{"node", "agent-namespace", "context"} {
		completeValues(root, name)
	}
}

// remote reports whether a verb is for the agent of another machine: no socket is named,
// and the verb asks an agent about a pod or a node.
func (a *app) remote(cmd *cobra.Command) bool {
	if !a.kubectl.plugin || a.socket != "" || a.getenv("CADASTRE_SOCKET") != "" {
		return false
	}
	return a.kubectl.node != "" || verbPath(cmd)[0] == "explain"
}

// verbPath returns the names of a verb, without that of the program.
func verbPath(cmd *cobra.Command) (path []string) {
	for ; cmd.HasParent(); cmd = cmd.Parent() {
		path = append(path, cmd.Name())
	}
	slices.Reverse(path)
	return path
}

// filesOfMachine returns the verbs that read or write files of the machine that they run on.
func filesOfMachine() []string {
	return []string{"plan", "apply", "backup", "restore", "rebuild", "database", "uninstall"}
}

// checkForward refuses a verb that would read or write a file of the agent's pod.
func checkForward(cmd *cobra.Command) error {
	verb := verbPath(cmd)[0]
	if slices.Contains(filesOfMachine(), verb) {
		return usagef("%s: it works on files of this machine: leave --node out, or name a socket with --socket", verb)
	}
	value := func(name string) string {
		if f := cmd.Flags().Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	switch {
	case verb == "doctor" && (value("file") != "-" || value("config") != ""):
		return usagef("doctor: its files would be those of the agent's pod: write -f - > FILE, without --config")
	case verb == "repair" && !slices.Contains([]string{"", "-"}, value("from-report")):
		return usagef(
			"repair: the agent's pod does not have %q: write --from-report - --yes < FILE",
			value("from-report"),
		)
	}
	return nil
}

// converses reports whether a verb reads standard input, or goes on until it is
// interrupted: what it says on standard error is shown at once.
func converses(cmd *cobra.Command) (reads, shows bool) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "yes" && !f.Changed, f.Name == "from-report" && f.Value.String() == "-":
			reads = true
		case f.Name == "follow" && f.Changed:
			shows = true
		}
	})
	return reads, reads || shows
}

// forward runs a verb in the agent's pod of the right node. args are those of the verb.
func (a *app) forward(ctx context.Context, cmd *cobra.Command, args []string) error {
	if err := checkForward(cmd); err != nil {
		return err
	}
	if cmd.Name() == "pod" && len(args) == 1 { // the agent's program gets NAMESPACE/NAME
		namespace, _ := cmd.Flags().GetString(namespaceFlag) // the flag exists
		pod, err := podToExplain(args[0], namespace)
		if err != nil {
			return err
		}
		args = []string{pod}
	}
	node, err := a.nodeOf(ctx, cmd, args)
	if err != nil {
		return err
	}
	pod, err := a.agentOn(ctx, node)
	if err != nil {
		return err
	}
	command := []string{"exec", "--namespace", a.kubectl.namespace, "pod/" + pod, "--container", agentContainer}
	reads, shows := converses(cmd)
	if reads { // otherwise kubectl takes the input of a script's loop
		command = append(command, "--stdin")
	}
	command = append(append(command, "--", agentCLI), a.forwarded(cmd, args)...)
	run := a.kubectlCommand(ctx, command...)
	var stderr bytes.Buffer
	run.Stdout, run.Stderr = a.stdout, &stderr
	if reads {
		run.Stdin = a.stdin
	}
	if shows {
		run.Stderr = io.MultiWriter(a.stderr, &stderr)
	}
	err = run.Run()
	var exit *exec.ExitError
	// kubectl adds a line about the exit code of the verb.
	said, _, ended := strings.Cut(stderr.String(), "command terminated with exit code")
	switch {
	case err == nil:
		if !shows {
			fmt.Fprint(a.stderr, stderr.String())
		}
		return nil
	case errors.As(err, &exit) && (shows || ended && strings.TrimSpace(said) == ""):
		return &exitError{code: exit.ExitCode()} // it has told why
	case errors.As(err, &exit) && strings.Contains(said, "cadastre: "):
		return &exitError{exit.ExitCode(), errors.New(strings.TrimPrefix(strings.TrimSpace(said), "cadastre: "))}
	}
	return a.plainKubectl(err, stderr.String(), "run a command in pod "+pod+" of node "+node,
		"create pods/exec in namespace "+a.kubectl.namespace)
}

// nodeOf returns the node whose agent answers a verb.
func (a *app) nodeOf(ctx context.Context, cmd *cobra.Command, args []string) (string, error) {
	switch {
	case a.kubectl.node != "":
		return a.kubectl.node, checkNodeName(a.kubectl.node)
	case cmd.Name() == "pod" && len(args) == 1:
		return a.nodeOfPod(ctx, args[0])
	case cmd.Name() == "node" && len(args) == 1:
		return args[0], checkNodeName(args[0])
	case cmd.Name() == "address" && len(args) == 1:
		return a.nodeOfAddress(ctx, args[0])
	}
	return "", usagef("%s: the node is not known: name it with --node", cmd.CommandPath())
}

// checkNodeName refuses a name that would mean more than one node in a selector.
func checkNodeName(node string) error {
	if node == "" || strings.Trim(node, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return usagef("node %q: want the name of a Node, such as node-5", node)
	}
	return nil
}

func (a *app) nodeOfPod(ctx context.Context, pod string) (string, error) {
	namespace, name, _ := strings.Cut(pod, "/")
	node, err := a.askKubectl(ctx, "find pod "+pod, "get pods in namespace "+namespace,
		"get", "--namespace", namespace, "pod/"+name, "--output", "jsonpath={.spec.nodeName}")
	if err == nil && node == "" {
		err = fmt.Errorf("pod %s has no node yet: kubectl -n %s describe pod %s shows why it is not scheduled",
			pod, namespace, name)
	}
	return node, err
}

// nodeOfAddress returns the node whose agent knows an address, which every agent can tell. If
// the first one cannot, it is that one's, which says why.
func (a *app) nodeOfAddress(ctx context.Context, address string) (string, error) {
	out, err := a.askKubectl(ctx, "find an agent", "list pods in namespace "+a.kubectl.namespace,
		"get", "pods", "--namespace", a.kubectl.namespace, "--selector", agentSelector,
		"--field-selector", "status.phase=Running",
		"--output", `jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name}{"\n"}{end}`)
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(out, "\n")
	node, pod, ok := strings.Cut(first, " ")
	if !ok {
		return "", fmt.Errorf("no agent runs in namespace %s: kubectl -n %s get pods -l %s -o wide lists them; "+
			"--agent-namespace names another namespace", a.kubectl.namespace, a.kubectl.namespace, agentSelector)
	}
	other, err := a.askKubectl(ctx, "ask the agent of node "+node, "create pods/exec in namespace "+a.kubectl.namespace,
		"exec", "--namespace", a.kubectl.namespace, "pod/"+pod, "--container", agentContainer,
		"--", agentCLI, "explain", "address", "--output=jsonpath={.ask}", "--", address)
	if err == nil && checkNodeName(other) == nil {
		node = other
	}
	return node, nil
}

// agentOn returns the name of the agent's pod on a node.
func (a *app) agentOn(ctx context.Context, node string) (string, error) {
	out, err := a.askKubectl(ctx, "find the agent of node "+node, "list pods in namespace "+a.kubectl.namespace,
		"get", "pods", "--namespace", a.kubectl.namespace, "--selector", agentSelector,
		"--field-selector", "spec.nodeName="+node,
		"--output", `jsonpath={range .items[*]}{.status.phase} {.metadata.name}{"\n"}{end}`)
	if err != nil {
		return "", err
	}
	phases := strings.Split(out, "\n")
	for _, line := range phases {
		if name, ok := strings.CutPrefix(line, "Running "); ok {
			return name, nil
		}
	}
	const where = "kubectl -n %s get pods -l %s -o wide lists the agents"
	if out == "" {
		return "", fmt.Errorf(
			"node %s has no agent pod in namespace %s: "+where+"; --agent-namespace names another namespace",
			node,
			a.kubectl.namespace,
			a.kubectl.namespace,
			agentSelector,
		)
	}
	phase, name, _ := strings.Cut(phases[0], " ")
	return "", fmt.Errorf("the agent of node %s does not run: pod %s is %s: "+where,
		node, name, phase, a.kubectl.namespace, agentSelector)
}

// forwarded returns a verb with its flags and arguments, without the flags of kubectl.
// Times are meant and shown in the time zone of this machine.
func (a *app) forwarded(cmd *cobra.Command, args []string) []string {
	path := verbPath(cmd)
	own := []string{"node", "agent-namespace", "context", "kubeconfig", "socket"}
	explains := slices.Contains(path, "explain")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		switch {
		case slices.Contains(own, f.Name), f.Name == namespaceFlag && explains:
			return
		case f.Name == "zone" && explains:
			value = cmp.Or(value, a.now().Format("-07:00"))
		case !f.Changed:
			return
		case f.Name == "at":
			if moment, err := parseMoment(value, a.now()); err == nil { // the agent's program tells what is wrong
				value = moment.Format(time.RFC3339Nano)
			}
		}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			for _, value := range several.GetSlice() {
				path = append(path, "--"+f.Name+"="+value)
			}
			return
		}
		path = append(path, "--"+f.Name+"="+value)
	})
	return append(append(path, "--"), args...) // an argument may begin with a dash
}

// askKubectl returns what kubectl prints. what and needs describe the request and the
// permission that it needs.
func (a *app) askKubectl(ctx context.Context, what, needs string, args ...string) (string, error) {
	cmd := a.kubectlCommand(ctx, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", a.plainKubectl(err, stderr.String(), what, needs)
	}
	return strings.TrimSpace(out.String()), nil
}

func (a *app) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	var flags []string
	if a.kubectl.context != "" {
		flags = append(flags, "--context", a.kubectl.context)
	}
	if a.kubectl.kubeconfig != "" {
		flags = append(flags, "--kubeconfig", a.kubectl.kubeconfig)
	}
	return exec.CommandContext(ctx, "kubectl", append(flags, args...)...)
}

// plainKubectl says in plain words why kubectl failed.
func (a *app) plainKubectl(err error, stderr, what, needs string) error {
	text := oneLine(stderr)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		err = fmt.Errorf("%s: kubectl is not in the PATH: install it, or run cadastre on the node", what)
		return &exitError{exitNoAgent, err}
	case strings.Contains(text, "(NotFound)"):
		return fmt.Errorf("%s: it does not exist: %s", what, text)
	case strings.Contains(text, "(Forbidden)") || strings.Contains(text, "is forbidden"):
		return fmt.Errorf("%s: kubectl's user may not: it needs the permission to %s: %s", what, needs, text)
	case text == "":
		return fmt.Errorf("%s: kubectl: %w", what, err)
	}
	return &exitError{exitNoAgent, fmt.Errorf("%s: kubectl: %s", what, text)}
}
