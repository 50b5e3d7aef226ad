// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

const contivConf = "../../conf/contiv.conf"

func restoreOlder(context.Context, string, string) (restoreReport, error) {
	return restoreReport{Kept: "/state/cadastre.db.replaced", Leases: 7, Older: true}, nil
}

// everyVerb is a successful call of each.
func everyVerb(t *testing.T) [][]string {
	return [][]string{
		{"plan", "--config", contivConf, "--node-id", "5"}, {"plan", "--config", contivConf, "--node-id", "5-6"},
		{"status"}, {"status", "--live"}, {"status", "--ready"}, {"leases"}, {"leases", "--pool", "blue"},
		{"top", "--once", "--interval", "100ms"},
		{"release", "--pod", "default/web", "--yes"}, {"release", "--pod", "default/none"},
		{"events"}, {"resync"}, {"check"}, {"version"},
		{"backup", filepath.Join(t.TempDir(), "copy.db")}, {"restore", "copy.db"}, {"accept"}, {"accept", "--yes"},
		{"node", "list"}, {"node", "release", "node-7"}, {"pool", "list"},
		{"doctor", "-f", filepath.Join(t.TempDir(), "bundle")},
		{"docker", "pools"}, {"docker", "pools", "release", "LocalDefault/10.50.0.0/24", "--yes"},
		{"apply", "-f", poolsFile(t)}, {"apply", "-f", poolsFile(t), "--dry-run"},
	}
}

// Every verb answers 0 in every format, and what is for programs they can read.
func TestEveryVerbInEveryFormat(t *testing.T) {
	for _, output := range append(formats(), "") {
		for _, args := range everyVerb(t) {
			t.Run(output+" "+strings.Join(args, " "), func(t *testing.T) {
				g := NewWithT(t)
				if output != "" {
					args = append(args, "-o", output)
				}
				got := callWith(t.Context(), newAgent(t).socket, "", restoreOlder, args...)
				g.Expect(got.code).To(Equal(0), got.err)
				var fromJSON, fromYAML any
				switch output {
				case "json":
					g.Expect(json.Unmarshal([]byte(got.out), &fromJSON)).To(Succeed(), got.out)
					g.Expect(fromJSON).NotTo(BeNil())
				case "yaml":
					g.Expect(yaml.Unmarshal([]byte(got.out), &fromYAML)).To(Succeed(), got.out)
					g.Expect(fromYAML).NotTo(BeNil())
				}
			})
		}
	}
}

// needsAgent are the verbs that nothing can be done about without an agent.
func needsAgent() [][]string {
	return [][]string{{"status"}, {"status", "--live"}, {"status", "--ready"}, {"top", "--once"}, {"top"}, {"leases"}, {"release", "--ip", "10.1.5.2"}, {"events"}, {"events", "-f"},
		{"resync"}, {"check"}, {"backup", "-"}, {"node", "list"}, {"node", "release", "node-7"}, {"pool", "list"}, {"docker", "pools"}, {"docker", "pools", "release", "x"}, {"apply", "-f", contivConf}}
}

func TestNoAgent(t *testing.T) {
	socket := noListener(t)
	for _, args := range needsAgent() {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			g := NewWithT(t)
			got := call(t, socket, "", args...)
			g.Expect(got.code).To(Equal(exitNoAgent))
			g.Expect(got.out).To(BeEmpty())
			g.Expect(got.err).To(HavePrefix("cadastre: "))
			g.Expect(got.err).To(ContainSubstring("no agent answers at " + socket + " (connect: no such file or directory): start cadastre-agent, or name its socket with --socket or CADASTRE_SOCKET"))
			g.Expect(strings.Count(got.err, "\n")).To(Equal(1))
		})
	}
}

// A socket file that a killed agent has left counts as no agent.
func TestSocketsWithoutAnAgent(t *testing.T) {
	g := NewWithT(t)
	left := filepath.Join(t.TempDir(), "left")
	g.Expect(os.WriteFile(left, nil, 0o600)).To(Succeed())
	g.Expect(call(t, left, "", "leases").code).To(Equal(exitNoAgent))

	long := call(t, "/tmp/"+strings.Repeat("x", 120), "", "leases")
	g.Expect(long.code).To(Equal(exitNoAgent))
	g.Expect(long.err).To(ContainSubstring("at most 103 bytes"))
}

func TestSocketComesFromFlagThenEnvironment(t *testing.T) {
	g := NewWithT(t)
	agent := newAgent(t)
	g.Expect(call(t, noListener(t), "", "leases", "--socket", agent.socket).code).To(Equal(0))
	g.Expect(call(t, agent.socket, "", "leases").code).To(Equal(0))

	var out, errs bytes.Buffer
	code := newApp(strings.NewReader(""), &out, &errs, func(string) string { return "" }).run(t.Context(), []string{"status", "--live"})
	g.Expect(code).To(SatisfyAny(Equal(exitNoAgent), Equal(0)), "this machine may have an agent")
}

// An error of the agent is 1, but for check.
func TestAgentRefuses(t *testing.T) {
	for _, args := range needsAgent() {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			g := NewWithT(t)
			agent := bareAgent(t)
			agent.text("/", 500, `{"error":"the disk is full"}`)
			got := call(t, agent.socket, "", args...)
			want := exitFailed
			if args[0] == "check" {
				want = exitCannotTell
			}
			g.Expect(got.code).To(Equal(want))
			g.Expect(got.out).To(BeEmpty())
			g.Expect(got.err).To(HaveSuffix(": the disk is full\n"))
		})
	}
}

// An unreadable answer is 1, but for check.
func TestAgentTalksNonsense(t *testing.T) {
	for _, body := range []string{"", "{", "nonsense", "[1,"} {
		agent := bareAgent(t)
		agent.text("/", 200, body)
		for _, verb := range []string{"status", "leases", "check", "events"} {
			if verb == "events" && body == "" {
				continue // there were none
			}
			t.Run(verb+" "+body, func(t *testing.T) {
				g := NewWithT(t)
				got := call(t, agent.socket, "", verb)
				want := map[string]int{"check": exitCannotTell}[verb]
				if want == 0 {
					want = exitFailed
				}
				g.Expect(got.code).To(Equal(want))
				g.Expect(got.err).To(ContainSubstring("read the agent's answer"))
			})
		}
	}
}

func TestUsage(t *testing.T) {
	agent := newAgent(t)
	for _, c := range []struct{ args, want string }{
		{"leese", "unknown command \"leese\" for \"cadastre\""},
		{"help leese", "unknown command \"leese\""},
		{"get cows", "unknown command \"cows\" for \"cadastre get\""},
		{"leases --no-headers -o json", "--sort-by and --watch are for tables: leave -o json out"},
		{"completion csh", "unknown command \"csh\""},
		{"leases --pot x", "unknown flag: --pot"},
		{"leases -x", "unknown shorthand flag: 'x'"},
		{"leases -o xml", `invalid argument "xml" for "-o, --output" flag: write one of table, wide, json, yaml`},
		{"leases x", `leases takes no arguments, but was given "x"`},
		{"leases --state free", `--state: "free" is not a state: write one of pending, held, cooling, quarantined`},
		{"leases --pod web", `--pod: "web" is not a pod: write NAMESPACE/NAME, such as default/web`},
		{"leases --pod a/b/c", `--pod: "a/b/c" is not a pod`},
		{"release", "release wants exactly one of --ip, --container and --pod, but has 0 of them"},
		{"release --ip 10.1.5.2 --pod a/b", "but has 2 of them"},
		{"release --ip 10.1.5.2/24", `--ip: "10.1.5.2/24" is not an address: write one without prefix length or zone, such as 10.1.5.2`},
		{"release --pod a/b --docker-pool x", `--docker-pool: "x" goes with --ip only`},
		{"docker pools release", "release takes one ID of a pool, as cadastre docker pools lists it, but was given 0 arguments"},
		{"release --ip 10.1.5.2 --if eth0", `--if: "eth0" goes with --container only`},
		{"release --pod web", `--pod: "web" is not a pod`},
		{"status --live --ready", "[live ready]"},
		{"events --since x", `invalid argument "x" for "--since" flag: want the number of an event, such as 100, or an age, such as 5m`},
		{"backup", "backup takes one FILE, but was given 0 arguments"},
		{"restore a b", "restore takes one FILE, but was given 2 arguments"},
		{"plan --config " + contivConf, "--node-id is missing, and cadastre.nodeID in ../../conf/contiv.conf pins none: write --node-id 5, or --node-id 1-10"},
		{"node lost", `unknown command "lost" for "cadastre node"`},
		{"pool x", `unknown command "x" for "cadastre pool"`},
		{"node list x", `list takes no arguments, but was given "x"`},
		{"node release", "release takes one NAME, but was given 0 arguments"},
		{"node release a b", "release takes one NAME, but was given 2 arguments"},
		{"apply", "--filename is missing: write -f pools.yaml, or -f - for standard input"},
		{"apply pools.yaml", `apply takes no arguments, but was given "pools.yaml"`},
		{"plan -f pools.yaml --config x", "[filename config]"},
		{"plan --against a.sock", "--filename is missing: write --against a.sock -f pools.yaml, or -f - for standard input"},
		{"plan --against a.sock -f x --node-id 5", "[against node-id]"},
		{"plan --against a.sock -f x --config y", "[against config]"},
		{"plan --node-id x", `--node-id: "x" is not a node ID`},
		{"plan --node-id 0", `--node-id: "0" is not a node ID: write one from 1 on, such as 5, or a range such as 1-10`},
		{"plan --node-id 1-x", `--node-id: "1-x" is not a node ID`},
		{"plan --node-id 4294967296", "is not a node ID"},
		{"plan --node-id 9-5", `--node-id: "9-5" ends before it begins: write 5-9`},
		{"plan --node-id 1-4097", `--node-id: "1-4097" are 4097 IDs: write a range of at most 4096`},
		{"plan --node-id 1-4294967295", "are 4294967295 IDs"},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			got := call(t, agent.socket, "", strings.Fields(c.args)...)
			g.Expect(got.code).To(Equal(exitUsage), got.err)
			g.Expect(got.out).To(BeEmpty())
			g.Expect(got.err).To(HavePrefix("cadastre: "))
			g.Expect(got.err).To(ContainSubstring(c.want))
			g.Expect(got.err).To(HaveSuffix(" --help\n"))
		})
	}
	NewWithT(t).Expect(agent.requests).To(BeEmpty())
}

func TestHelpAndCompletion(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no agent answers"},
		{"help", "Available Commands:"},
		{"help leases", "cadastre leases [flags]"},
		{"check --help", "4 if there are"},
		{"node", "cadastre node [command]"},
		{"help node release", "cadastre node release NAME [flags]"},
		{"plan --help", "cadastre plan -f pools.yaml"},
		{"completion", "completion bash"},
		{"completion bash", "__start_cadastre"},
		{"__complete leases -o ''", "table\nwide\njson\nyaml\n"},
		{"__complete leases --state ''", "pending\nheld\ncooling\nquarantined\n"},
		{"__complete re", "release\tRelease addresses of a container or pod that has ended\nrepair\tRepair the findings of a report of check, or all of one number\nrestore"},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			args := strings.Fields(strings.ReplaceAll(c.args, "''", "EMPTY"))
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "EMPTY", "")
			}
			got := call(t, noListener(t), "", args...)
			g.Expect(got.code).To(Equal(0), got.err)
			if c.args == "completion" {
				g.Expect(got.out).To(ContainSubstring("bash"))
				return
			}
			g.Expect(got.out).To(ContainSubstring(c.want))
		})
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Output that cannot be written is a failure, and check must not call that clean.
func TestOutputFails(t *testing.T) {
	agent := newAgent(t)
	for _, c := range []struct {
		verb string
		code int
	}{{"leases", exitFailed}, {"status", exitFailed}, {"check", exitCannotTell}, {"events", exitFailed}, {"version", exitFailed}} {
		t.Run(c.verb, func(t *testing.T) {
			g := NewWithT(t)
			var errs bytes.Buffer
			code := newApp(strings.NewReader(""), brokenPipe{}, &errs, os.Getenv).run(t.Context(), []string{c.verb, "--socket", agent.socket})
			g.Expect(code).To(Equal(c.code))
			g.Expect(errs.String()).To(HaveSuffix("print: broken pipe\n"))
		})
	}
}

func TestInterrupted(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := callWith(ctx, newAgent(t).socket, "", nil, "leases")
	g.Expect(got).To(Equal(outcome{exitFailed, "", "cadastre: leases: interrupted\n"}))
	g.Expect(callWith(ctx, newAgent(t).socket, "", nil, "events", "-f")).To(Equal(outcome{}), "that is how following ends")
}

// A foreign name cannot move the cursor of a terminal.
func TestTerminalIsSafe(t *testing.T) {
	g := NewWithT(t)
	agent := newAgent(t)
	agent.leases = []localapi.Lease{{IP: "10.1.5.2", PodNamespace: "a", PodName: "\x1b[2Jweb\nx"}}
	got := call(t, agent.socket, "", "leases")
	g.Expect(got.out).To(ContainSubstring("a/?[2Jweb?x"))
	agent = bareAgent(t)
	agent.text("/", 500, `{"error":"a\u001b[2J\nb"}`)
	g.Expect(call(t, agent.socket, "", "leases").err).To(Equal("cadastre: leases: a?[2J\nb\n"))
}
