// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/witness"
)

// Exit codes.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitNoAgent    = 3
	exitFindings   = 4 // check; and where the agent refuses: apply, plan, repair, and what ends something in use
	exitCannotTell = 5 // check only
)

// exitError is an error with an exit code of its own. Without err the outcome
// has been printed already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef returns an error in how the program was called.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is one call of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	environ        func() []string
	kernel         func(context.Context) (*witness.KernelView, error)
	now            func() time.Time
	pause          func(context.Context, time.Duration) error // before the agent is asked again
	restore        restoreFunc
	terminal       func(io.Writer) terminal

	uninstallKernel uninstallFunc
	usesOfKernel    func() ([]string, error) // of what uninstallKernel removes

	socket  string
	kubectl kubectl
	output  format
	begun   bool // a verb has been called: its errors are not about usage
}

func newApp(stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) *app {
	return &app{
		stdin:   stdin,
		stdout:  stdout,
		stderr:  stderr,
		getenv:  getenv,
		environ: os.Environ,
		kernel:  readKernel,
		now:     time.Now,
		pause:   sleep,
		output:  formatTable,
		restore: restoreFile,

		terminal: terminalOf,

		uninstallKernel: uninstallKernel,
		usesOfKernel:    usesOfKernel,
	}
}

// run calls the verb that args name and prints its error.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCmd()
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	code := exitFailed
	var coded *exitError
	if errors.As(err, &coded) {
		code = coded.code
	} else if !a.begun {
		code = exitUsage
	}
	if text := strings.TrimSpace(err.Error()); text != "" {
		fmt.Fprintln(a.stderr, "cadastre: "+cleanLines(text))
	}
	if code == exitUsage {
		fmt.Fprintf(a.stderr, "see: %s --help\n", cmd.CommandPath())
	}
	return code
}

func (a *app) rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "cadastre",
		Short: "The land register of this node's addresses",
		Long: `cadastre shows which addresses this node has, who holds them and since when, and
how the node's agent is. "get leases", "pools" and "nodes" are further names of the lists.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no agent answers; of check also
4 findings, 5 cannot tell; of explain 1 without an answer. 4 is also the code of what the
agent refuses: apply, plan -f, repair, and what a verb would end that is in use.`,
		Version:       version.Read().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("cadastre {{.Version}}\n")
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.Flags().Bool("version", false, "print the version of this program")
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "the agent's socket (default $CADASTRE_SOCKET, else "+defaultSocket+")")
	flags.VarP(&a.output, "output", "o", "how to print: "+formatsText())
	completeValues(root, "output", append(formats(), jsonpathPrefix)...)
	if a.kubectl.plugin {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl cadastre"}
		a.kubectl.flags(root)
	}
	root.SetHelpCommand(helpCmd())
	root.AddCommand(
		a.planCmd(),
		a.statusCmd(),
		a.topCmd(),
		a.leasesCmd(),
		a.releaseCmd(),
		a.eventsCmd(),
		a.pageCmd(),
		a.explainCmd(),
		a.resyncCmd(),
		a.checkCmd(),
		a.repairCmd(),
		a.nodeCmd(),
		a.poolCmd(),
		a.dockerCmd(),
		a.reclaimCmd(),
		a.applyCmd(),
		a.backupCmd(),
		a.restoreCmd(),
		a.rebuildCmd(),
		a.acceptCmd(),
		a.doctorCmd(),
		a.uninstallCmd(),
		a.versionCmd(),
	)
	root.AddCommand(a.habits()...)
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // otherwise it takes any argument
	}
	return root
}

// group returns a verb that consists of others.
func group(name, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// helpCmd returns cobra's, but for an unknown topic being an error.
func helpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Explain a verb",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// verb makes f a cobra function.
func (a *app) verb(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.begun = true
		if a.remote(cmd) {
			return a.forward(cmd.Context(), cmd, args)
		}
		return f(cmd.Context(), args)
	}
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, but was given %q", cmd.Name(), args[0])
	}
	return nil
}

// oneFile wants the name of a file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes one FILE, but was given %d arguments", cmd.Name(), len(args))
	}
	return nil
}

// completeValues lets the shell complete the values of a flag.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}
