// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

const referencePath = "../../docs/cli.md"

const referenceHead = `# The command line

This page is made from the help texts of the program (` + "`cadastre help VERB`" + `). A test compares it;
` + "`make generate`" + ` writes it anew.

As ` + "`kubectl cadastre`" + ` the program asks the agent of a node of the cluster; it then has the flags of
[the last section](#kubectl-cadastre), too.

| exit code | meaning |
|---|---|
| 0 | done; of ` + "`check`" + `: no findings |
| 1 | failed |
| 2 | wrong usage: an unknown verb or flag, a value that a flag does not take, a wrong number of arguments |
| 3 | no agent answers |
| 4 | ` + "`check`" + `: there are findings; ` + "`apply`, `plan --against` and `repair`" + `: refused |
| 5 | ` + "`check`" + `: cannot tell |

| ` + "`-o`" + ` | prints |
|---|---|
| ` + "`table`, `wide`" + ` | text for people; it may change with each version |
| ` + "`json`, `yaml`" + ` | all fields; fields are added, never renamed |
| ` + "`name`" + ` | the name of each object, one a line, as other verbs take it: an address for ` + "`release --ip`" + `, a node for ` + "`node release`" + `, a signature for ` + "`repair --finding`" + ` |
| ` + "`jsonpath=TEMPLATE`" + ` | text with JSONPath expressions in braces, as kubectl has it: ` + "`{range [*]}{.ip}{\"\\n\"}{end}`" + `, ` + "`{[?(@.state==\"held\")].ip}`" + ` |
`

// programFor returns the commands of the program, as kubectl's plugin if so.
func programFor(plugin bool) *cobra.Command {
	a := newApp(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}, func(string) string { return "" })
	a.kubectl.plugin = plugin
	return a.rootCmd()
}

// verbsOf returns a command and all below, in the order of their names.
func verbsOf(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			all = append(all, verbsOf(c)...)
		}
	}
	return all
}

// reference returns docs/cli.md.
func reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, cmd := range verbsOf(programFor(false)) {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", cmd.CommandPath(), cmd.Short)
		writeText(&b, cmd.Long)
		fmt.Fprintf(&b, "\n```text\n%s\n```\n", cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(&b, "\nExamples:\n\n```text\n%s\n```\n", cmd.Example)
		}
		cmd.InitDefaultHelpFlag()
		writeFlags(&b, cmd.LocalNonPersistentFlags())
		writeFlags(&b, cmd.PersistentFlags())
	}
	plugin := programFor(true)
	b.WriteString("\n## kubectl cadastre\n\nThe flags of the program as a plugin of kubectl, for every verb:\n")
	writeFlags(&b, plugin.PersistentFlags())
	return b.String()
}

func writeText(b *strings.Builder, long string) {
	if long != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimSpace(long))
	}
}

// writeFlags writes a table of flags, without --help.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	head := "\n| flag | meaning |\n|---|---|\n"
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			name += " " + value
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "%s| `%s` | %s |\n", head, name, strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(usage))
		head = ""
	})
}

// TestReference compares docs/cli.md with the help texts of the program.
func TestReference(t *testing.T) {
	generated.File(t, referencePath, reference())
}
