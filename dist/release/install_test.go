// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/engines/dockertest"
	"github.com/cadastre/cadastre/internal/testkit/generated/pageblocks"
)

// patience bounds the wait for another process; it decides no result.
const patience = 5 * time.Minute

// shell runs blocks of a page of docs/install.
type shell struct {
	*WithT
	page    *pageblocks.Page
	command func(ctx context.Context, script string) *exec.Cmd
}

// openPage opens a page of docs/install; notRun has the reasons for blocks that are not run.
func openPage(g *WithT, name string, notRun map[string]string) *pageblocks.Page {
	page, err := pageblocks.Open(filepath.Join(repository, "docs", "install", name), notRun)
	g.Expect(err).NotTo(HaveOccurred())
	return page
}

// take returns the page's next block in a language.
func (s shell) take(language string) string {
	text, err := s.page.Take(language)
	s.Expect(err).NotTo(HaveOccurred())
	return text
}

// next runs the page's next block of shell commands, and returns what it printed.
func (s shell) next(t *testing.T) string {
	t.Helper()
	return s.run(t, s.take("sh"))
}

func (s shell) run(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := s.command(ctx, script)
	cmd.WaitDelay = time.Second // of what it leaves in the background
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, script, out)
	}
	return string(out)
}

// rest fails if a block of the page is neither run nor has a reason.
func (s shell) rest(t *testing.T) {
	t.Helper()
	notRun, err := s.page.Rest()
	s.Expect(err).NotTo(HaveOccurred())
	for _, line := range notRun {
		t.Log(line)
	}
}

// furnishMachine makes this machine's copy in a mount, network and process namespace of its
// own: changes go to memory. $0 is an empty folder, $1 the release. Files of an agent of this
// machine are not in the copy.
const furnishMachine = `
mount --make-rprivate /
mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" none "$0/root"
cd "$0/root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs none run
mount -t tmpfs none tmp
mkdir -p run/systemd/system tmp/release
cp "$1"/*.deb tmp/release
rm -rf var/lib/cadastre etc/cadastre etc/cni opt/cni
ip link set lo up
exec chroot . sh -c 'echo furnished; while read -r line; do :; done'
`

// systemctl stands in for that of systemd, which is not the first process there: it starts
// and ends the command of the installed unit, with the unit's folders and capabilities.
const systemctl = `#!/bin/sh
unit=/usr/lib/systemd/system/cadastre-agent.service
case "$*" in
"enable --now cadastre-agent.service")
	mkdir -p -m 0700 /run/cadastre /var/lib/cadastre
	capabilities=$(sed -n 's/^CapabilityBoundingSet=//p' $unit | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
	setsid setpriv --inh-caps=-all --bounding-set=-all,$capabilities --no-new-privs \
		$(sed -n 's/^ExecStart=//p' $unit) </dev/null >/tmp/agent.log 2>&1 &
	echo $! >/run/agent.pid
	for i in $(seq 1200); do
		cadastre status --ready >/dev/null 2>&1 && exit
		readlink "/proc/$!/exe" >/dev/null || break
		sleep 0.05
	done
	cat /tmp/agent.log
	exit 1 ;;
"disable --now cadastre-agent.service")
	[ -e /run/agent.pid ] || exit 0
	kill "$(cat /run/agent.pid)"
	while readlink "/proc/$(cat /run/agent.pid)/exe" >/dev/null; do sleep 0.05; done
	rm /run/agent.pid ;;
esac
`

// newBareMachine returns a shell in a copy of this machine.
func newBareMachine(t *testing.T, release string) func(context.Context, string) *exec.Cmd {
	g := NewWithT(t)
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: a copy of this machine needs root")
	}
	for _, program := range []string{"apt", "dpkg", "ip", "ping", "nsenter", "setpriv", "setsid"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %v", err)
		}
	}
	holder := exec.Command("sh", "-e", "-c", furnishMachine, t.TempDir(), release)
	holder.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
	}
	stdin, err := holder.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	stdout, err := holder.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	var said strings.Builder
	holder.Stderr = &said
	g.Expect(holder.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = holder.Process.Kill() // and with it all that runs there
		_ = holder.Wait()
	})
	if n, err := stdout.Read(make([]byte, len("furnished\n"))); n == 0 {
		_ = holder.Wait()
		t.Skipf("NOT RUN: this machine cannot be copied by an overlay: %v: %s", err, said.String())
	}
	return func(ctx context.Context, script string) *exec.Cmd {
		return exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(holder.Process.Pid),
			"--mount", "--net", "--pid", "--root", "--wd", "sh", "-e", "-c", "export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp DEBIAN_FRONTEND=noninteractive\ncd /tmp/release\n"+script)
	}
}

// testBareMachine runs docs/install/bare-machine.md.
func (r made) testBareMachine(t *testing.T) {
	command := newBareMachine(t, r.dir)
	g := NewWithT(t)
	s := shell{g, openPage(g, "bare-machine.md", nil), command}
	s.run(t, "cat >/usr/bin/systemctl <<'END'\n"+systemctl+"END\nchmod 0755 /usr/bin/systemctl\nip link show lo | grep -q UP\n")

	s.next(t)
	s.run(t, "cat >/etc/cadastre/contiv.conf <<'END'\n"+s.take("yaml")+"END\n")
	s.next(t)
	g.Expect(s.next(t)).To(And(ContainSubstring("ready       yes"), ContainSubstring(`"address": "10.1.1.2/32"`),
		ContainSubstring("inet 10.1.1.2/32"), ContainSubstring(" 0% packet loss"), MatchRegexp(`10\.1\.1\.2 +held +pod`), ContainSubstring("\nclean: ")))
	g.Expect(s.next(t)).To(ContainSubstring("nothing to repair: check has no finding C206"))
	s.next(t)
	left := s.run(t, "ls -d /usr/bin/cadastre* /opt/cni/bin/cadastre* /etc/cadastre /var/lib/cadastre 2>/dev/null || true; ip -brief link; ip route; ip netns")
	g.Expect(strings.Fields(left)).To(HaveExactElements("lo", "UNKNOWN", "00:00:00:00:00:00", "<LOOPBACK,UP,LOWER_UP>"), "nothing is left")
	s.rest(t)
}

// testDockerPage runs docs/install/docker.md.
func (r made) testDockerPage(t *testing.T) {
	engine := dockertest.Start(t)
	g := NewWithT(t)
	dir := t.TempDir()
	archives, err := filepath.Glob(filepath.Join(r.dir, "cadastre_*_linux_*.tar.gz"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(archives).To(HaveLen(1))
	g.Expect(os.Symlink(archives[0], filepath.Join(dir, filepath.Base(archives[0])))).To(Succeed())
	s := shell{g, openPage(g, "docker.md", nil), func(ctx context.Context, script string) *exec.Cmd {
		// The engine of the test has folders of its own, and an image of its own for lack of a registry.
		script = strings.NewReplacer("/var/lib/docker/", engine.Data()+"/", "/run/cadastre-plugin", filepath.Join(dir, "plugin"),
			"busybox:1.37.0 sleep 3600", dockertest.Image+" wait").Replace(script)
		cmd := exec.CommandContext(ctx, "sh", "-e", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), engine.Environment()...)
		return cmd
	}}
	s.next(t)
	g.Expect(s.next(t)).To(HaveSuffix("\n10.77.0.2\n"))
	g.Expect(s.next(t)).To(And(MatchRegexp(`10\.77\.0\.2 +held +docker`), MatchRegexp(`10\.77\.0\.1 +held`)))
	s.next(t)
	g.Expect(engine.Docker("plugin", "ls", "--quiet")).To(BeEmpty())
	g.Expect(engine.Docker("network", "ls", "--quiet", "--filter=name=blue")).To(BeEmpty())
	s.rest(t)
}
