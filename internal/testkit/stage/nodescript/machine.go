// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// patience bounds the wait for another process; it decides no result.
const patience = time.Minute

// machine holds the programs that run in the folder of one script.
type machine struct {
	stage.Agent
	process *stage.Process
	copied  *stage.Process // the agent of another machine on a copy of the state; nil: none
	store   *etcdtest.Server
	node    *node // nil: the programs run in the network namespace of the test
}

type machineKey struct{}

func machineOf(ts *testscript.TestScript) *machine {
	return ts.Value(machineKey{}).(*machine)
}

func (m *machine) path(name string) string { return filepath.Join(m.Dir, name) }

// start starts the program of cmd, whose output goes to the agent's log.
func (m *machine) start(cmd *exec.Cmd) error {
	if m.process != nil {
		return errors.New("a program runs already")
	}
	log, err := os.OpenFile(m.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	within := func(f func() error) error { return f() }
	if m.node != nil {
		within = m.node.host.Do
	}
	m.process, err = stage.Start(cmd, within)
	return errors.Join(err, log.Close()) // the program has its own
}

// end ends the program with stop and forgets it.
func (m *machine) end(stop func(*stage.Process) error) error {
	if m.process == nil {
		return errors.New("no program runs")
	}
	err := stop(m.process)
	m.process = nil
	return err
}

// rest waits until the agent is at rest, if it is ready and makes a network.
func (m *machine) rest() error {
	if m.process == nil || m.node == nil {
		return nil
	}
	var s localapi.Status
	text, err := m.Get(context.Background(), localapi.PathStatus)
	if err != nil {
		return nil //nolint:nilerr // the script has ended the agent, or has not waited for its start
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if !s.Ready || s.Southbound == nil {
		return nil
	}
	return m.AwaitRest(context.Background(), m.process, m.node.host.Do)
}

func (m *machine) close() {
	if m.process != nil {
		_ = m.process.Stop(patience)
	}
	if m.copied != nil {
		_ = m.copied.Stop(patience)
	}
	if m.node != nil {
		m.node.close()
	}
}

// runAgent implements the command agent.
func runAgent(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf(agentUsage)
	}
	m := machineOf(ts)
	switch args[0] {
	case "start", "launch":
		conf := os.Expand(ts.ReadFile(m.Config), ts.Getenv)
		ts.Check(os.WriteFile(m.Config, []byte(conf), 0o600))
		cmd := m.Command(nil)
		flag, err := ofMachine(m.Dir, 1)
		ts.Check(err)
		cmd.Args = append(cmd.Args, flag...)
		ts.Check(m.start(cmd))
		if args[0] == "start" {
			m.await(ts)
		}
	case "stop":
		ts.Check(m.rest())
		ts.Check(m.end(func(p *stage.Process) error { return p.Stop(patience) }))
	case "kill":
		ts.Check(m.end((*stage.Process).Kill))
	case "ends":
		ts.Check(m.end(func(p *stage.Process) error {
			select {
			case <-p.Done():
				return nil
			case <-time.After(patience):
				return errors.New("the agent goes on")
			}
		}))
	case "copy":
		ts.Check(m.copy())
	default:
		ts.Fatalf(agentUsage)
	}
}

const agentUsage = "usage: agent start|launch|stop|kill|ends|copy"

// copy runs an agent of another machine on a copy of the state.
func (m *machine) copy() error {
	other := m.Agent
	other.Dir = m.path("copy")
	if err := errors.Join(os.MkdirAll(other.Dir, 0o700), os.CopyFS(other.State(), os.DirFS(m.State()))); err != nil {
		return err
	}
	flag, err := ofMachine(other.Dir, 2)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(other.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := other.Command(log)
	cmd.Args = append(cmd.Args, flag...)
	m.copied, err = stage.Start(cmd, func(f func() error) error { return f() })
	return errors.Join(err, log.Close()) // the agent has its own
}

// ofMachine returns the flag that gives the agent of a folder a machine of its own: all
// agents of a script see the same boot.
func ofMachine(dir string, number int) (flag []string, err error) {
	file := filepath.Join(dir, "product-uuid")
	uuid := fmt.Sprintf("4c4c4544-0051-3510-8052-%012d\n", number)
	return []string{"--product-uuid", file}, os.WriteFile(file, []byte(uuid), 0o600)
}

// runStore implements the command store.
func runStore(ts *testscript.TestScript, neg bool, args []string) {
	m := machineOf(ts)
	switch {
	case neg || len(args) != 1 || (args[0] == "start") != (m.store == nil):
		ts.Fatalf("usage: store start, once, then stop|again")
	case args[0] == "start":
		m.store = etcdtest.Start(storeTB{ts, m.path("etcd")})
		ts.Setenv("ETCD", m.store.Endpoint())
	case args[0] == "stop":
		ts.Check(m.store.Stop())
	case args[0] == "again":
		ts.Check(m.store.Restart())
	}
}

// storeTB is the test of an etcd of a script.
type storeTB struct {
	*testscript.TestScript
	dir string
}

func (storeTB) Helper() {}

// TempDir returns the folder of etcd.
func (t storeTB) TempDir() string {
	t.Check(os.MkdirAll(t.dir, 0o700))
	return t.dir
}

// Cleanup runs f when the script has ended.
func (t storeTB) Cleanup(f func()) { t.Defer(f) }

// await waits until the program serves.
func (m *machine) await(ts *testscript.TestScript) {
	if err := m.Await(context.Background(), m.process); err != nil {
		log, _ := os.ReadFile(m.Log())
		ts.Fatalf("%v\n%s", err, log)
	}
}

// runDocker implements the command docker.
func runDocker(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "start" {
		ts.Fatalf("usage: docker start")
	}
	m := machineOf(ts)
	if ts.Getenv("DRIVER") == "agent" {
		runAgent(ts, false, args)
		return
	}
	ts.Check(os.MkdirAll(filepath.Dir(m.Socket()), 0o700)) // the plugin serves its API in its data folder
	flags := []string{
		"--socket", m.path("docker.sock"),
		"--agent", m.path("none.sock"),
		"--engine", "none",
		"--data", filepath.Dir(m.Socket()),
	}
	ts.Check(m.start(exec.Command(m.Program("cadastre-docker-plugin"), flags...)))
	m.await(ts)
	ts.Check(answers(m.path("docker.sock"), m.process))
}

// answers waits until a program accepts connections at a socket.
func answers(socket string, p *stage.Process) error {
	limit := time.After(patience)
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.Done():
			return p.Ended()
		case <-limit:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// runPod implements the command pod.
func runPod(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: pod ADD|CHECK|DEL NAME [KEY=VALUE]")
	}
	p := pod{name: args[1], container: args[1], ifName: "eth0"}
	for _, arg := range args[2:] {
		ts.Check(p.set(arg))
	}
	stdout, stderr, err := machineOf(ts).pod(args[0], p)
	fmt.Fprint(ts.Stdout(), stdout)
	fmt.Fprint(ts.Stderr(), stderr)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		ts.Check(err)
	}
	if neg == (err == nil) {
		ts.Fatalf("pod %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
}

// pod holds the arguments of a call of the CNI plugin.
type pod struct {
	name, container, ifName, uid, ip string
	user                             *syscall.Credential // nil: the one of the test
}

func (p *pod) set(arg string) error {
	key, value, _ := strings.Cut(arg, "=")
	switch key {
	case "container":
		p.container = value
	case "if":
		p.ifName = value
	case "uid":
		p.uid = value
	case "ip":
		p.ip = value
	case "as":
		id, err := strconv.ParseUint(value, 10, 32)
		p.user = &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
		return err
	default:
		return fmt.Errorf("pod: %q is not one of container, if, uid, ip, as", key)
	}
	return nil
}

// pod runs the CNI plugin for a container of a pod, as a main plugin does.
func (m *machine) pod(command string, p pod) (stdout, stderr string, err error) {
	arguments := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.name
	if p.uid != "" {
		arguments += ";K8S_POD_UID=" + p.uid
	}
	if p.ip != "" {
		arguments += ";IP=" + p.ip
	}
	cmd := exec.Command(m.Program("cadastre-cni"))
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+command,
		"CNI_CONTAINERID="+p.container,
		"CNI_NETNS=/run/netns/"+p.container,
		"CNI_IFNAME="+p.ifName,
		"CNI_PATH=/opt/cni/bin",
		"CNI_ARGS="+arguments,
	)
	if p.user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.user}
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(
		`{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": %q}}`,
		m.Socket(),
	))
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// runAs implements the command as.
func runAs(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: as UID PROGRAM [ARGS]")
	}
	id, err := strconv.ParseUint(args[0], 10, 32)
	ts.Check(err)
	m := machineOf(ts)
	cmd := exec.Command(m.Program(args[1]), args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "CADASTRE_SOCKET="+m.Socket())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}
	out, err := cmd.CombinedOutput()
	fmt.Fprint(ts.Stdout(), string(out))
	if neg == (err == nil) {
		ts.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// fill implements the command fill.
func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: fill")
	}
	const most = 300 // more than a /24 has
	for n := range most {
		if stdout, stderr, err := machineOf(ts).pod("ADD", filler(n)); err != nil {
			fmt.Fprint(ts.Stdout(), stdout, stderr)
			return
		}
	}
	ts.Fatalf("%d pods have not filled the node", most)
}

func filler(n int) pod {
	name := fmt.Sprintf("filler-%d", n)
	return pod{name: name, container: name, ifName: "eth0"}
}

// printLeases implements the command leases.
func printLeases(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: leases")
	}
	all, _, err := machineOf(ts).Leases(context.Background())
	ts.Check(err)
	for _, l := range all {
		if l.State == "held" && l.Purpose == "pod" {
			fmt.Fprintf(ts.Stdout(), "%s %s/%s since %s\n", l.IP, l.PodNamespace, l.PodName, l.Since)
		}
	}
}

// eventually implements the command eventually.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN PROGRAM [ARGS]")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	m := machineOf(ts)
	var out []byte
	for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		cmd := exec.Command(m.Program(args[1]), args[2:]...)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(os.Environ(), "CADASTRE_SOCKET="+m.Socket())
		if out, err = cmd.CombinedOutput(); err == nil && pattern.Match(out) {
			fmt.Fprint(ts.Stdout(), string(out))
			return
		}
	}
	ts.Fatalf("%s: %v: no match for %#q in\n%s", strings.Join(args[1:], " "), err, args[0], out)
}

// checkMetric implements the command metric.
func checkMetric(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: metric NAME VALUE")
	}
	if value := metricOf(ts, args[0]); value != args[1] {
		ts.Fatalf("metric %s is %s, want %s", args[0], value, args[1])
	}
}

// checkBelow implements the command below.
func checkBelow(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: below NAME VALUE")
	}
	value, err := strconv.ParseFloat(metricOf(ts, args[0]), 64)
	ts.Check(err)
	limit, err := strconv.ParseFloat(args[1], 64)
	ts.Check(err)
	if value >= limit {
		ts.Fatalf("metric %s is %v, want less than %v", args[0], value, limit)
	}
}

// metricOf returns the value of a metric of the agent.
func metricOf(ts *testscript.TestScript, name string) string {
	out, err := machineOf(ts).Get(context.Background(), "/metrics")
	ts.Check(err)
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	ts.Fatalf("there is no metric %s", name)
	return ""
}

// fenced returns the first block of a language, "" if there is none.
func fenced(section, language string) string {
	_, rest, _ := strings.Cut(section, "\n```"+language+"\n")
	text, _, _ := strings.Cut(rest, "```")
	return text
}

// changePoolPage has the examples that scripts run.
const changePoolPage = "docs/tasks/change-a-pool.md"

// runExample implements the command example: it writes the file that the example names,
// and runs its commands.
func runExample(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: example HEADING")
	}
	m := machineOf(ts)
	page, err := os.ReadFile(filepath.Join(root, changePoolPage))
	ts.Check(err)
	_, section, found := strings.Cut(string(page), "\n## "+args[0]+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	file, text := "", fenced(section, "yaml")
	if name, rest, ok := strings.Cut(text, "\n"); ok {
		file, text = strings.TrimPrefix(name, "# "), rest
	}
	var commands [][]string
	for line := range strings.Lines(fenced(section, "sh")) {
		commands = append(commands, strings.Fields(strings.ReplaceAll(line, "/run/cadastre/agent.sock", m.Socket())))
	}
	if !found || text == "" || len(commands) == 0 {
		ts.Fatalf("%s has no example with a file and commands below %q", changePoolPage, args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(file), []byte(text), 0o600))
	for _, c := range commands {
		ts.Check(ts.Exec(c[0], c[1:]...))
	}
}
