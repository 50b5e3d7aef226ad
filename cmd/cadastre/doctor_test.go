// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// patient is a call of doctor on a node.
type patient struct {
	*WithT
	agent   *fakeAgent
	dir     string
	environ []string
	kernel  *witness.KernelView
	blind   error // of the kernel
}

func newPatient(t *testing.T, agent *fakeAgent) *patient {
	return &patient{WithT: NewWithT(t), agent: agent, dir: t.TempDir(), kernel: &witness.KernelView{Hidden: "/proc/7"}}
}

func (p *patient) path(name string) string { return filepath.Join(p.dir, name) }

func (p *patient) file(name, text string) string {
	p.Expect(os.WriteFile(p.path(name), []byte(text), 0o600)).To(Succeed())
	return p.path(name)
}

func (p *patient) doctor(t *testing.T, args ...string) outcome {
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(""), &out, &errs, func(key string) string {
		return map[string]string{"CADASTRE_SOCKET": p.agent.socket}[key]
	})
	a.now, a.environ = noon, func() []string { return p.environ }
	a.kernel = func(context.Context) (*witness.KernelView, error) { return p.kernel, p.blind }
	code := a.run(t.Context(), append([]string{"doctor"}, args...))
	return outcome{code, out.String(), errs.String()}
}

// unpack returns the files of an archive by their names.
func (p *patient) unpack(archive []byte) map[string]string {
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	p.Expect(err).NotTo(HaveOccurred())
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		p.Expect(err).NotTo(HaveOccurred())
		p.Expect(h.Mode).To(BeEquivalentTo(0o600), h.Name)
		p.Expect(h.Uname + h.Gname).To(BeEmpty())
		text, err := io.ReadAll(r)
		p.Expect(err).NotTo(HaveOccurred())
		files[strings.TrimPrefix(h.Name, "cadastre-doctor/")] = string(text)
	}
}

func (p *patient) read(file string) map[string]string {
	archive, err := os.ReadFile(file)
	p.Expect(err).NotTo(HaveOccurred())
	return p.unpack(archive)
}

func TestDoctor(t *testing.T) {
	p := newPatient(t, newAgent(t))
	p.agent.text(localapi.PathMetrics, 200, "cadastre_leases 4\n")
	p.agent.text(localapi.PathLogs, 200, "level=INFO msg=started\n")
	p.agent.json(localapi.PathHistory, []localapi.HistoryEntry{})
	p.agent.json(localapi.PathReclaims, struct{}{})
	p.agent.explain()
	got := p.doctor(t, "--config", contivConf, "-f", p.path("out.tar.gz"))
	p.Expect(got.code).To(Equal(0), got.err)
	p.Expect(got.out).To(And(ContainSubstring("out.tar.gz"), ContainSubstring("15 parts"), Not(ContainSubstring("missing"))))
	files := p.read(p.path("out.tar.gz"))
	p.Expect(files).To(And(
		HaveKeyWithValue("contiv.conf.yaml", ContainSubstring("podSubnetCIDR: 10.1.0.0/16")),
		HaveKeyWithValue("versions.json", ContainSubstring(`"agent": "0.1.0"`)),
		HaveKeyWithValue("status.json", ContainSubstring("node-5")),
		HaveKeyWithValue("leases.json", ContainSubstring("10.1.5.2")),
		HaveKeyWithValue("metrics.txt", "cadastre_leases 4\n"),
		HaveKeyWithValue("explain.jsonl", ContainSubstring(`"subject":"node"`)),
		HaveKeyWithValue("kernel.json", ContainSubstring("/proc/7")),
		HaveKeyWithValue("agent.log", "level=INFO msg=started\n"),
		HaveKeyWithValue("contents.txt", ContainSubstring("events.jsonl: ")),
	))
	for _, name := range []string{"status.json", "leases.json", "check.json", "versions.json"} {
		p.Expect(json.Valid([]byte(files[name]))).To(BeTrue(), name)
	}
	info, err := os.Stat(p.path("out.tar.gz"))
	p.Expect(err).NotTo(HaveOccurred())
	p.Expect(info.Mode()).To(Equal(os.FileMode(0o600)))

	piped := p.doctor(t, "--config", contivConf, "-f", "-")
	p.Expect(piped.code).To(Equal(0))
	p.Expect(p.unpack([]byte(piped.out))).To(HaveLen(len(files)))
}

// explain answers as an agent whose last failed events are of 30 pods.
func (a *fakeAgent) explain() {
	a.mux.HandleFunc(localapi.PathExplain, func(w http.ResponseWriter, r *http.Request) {
		args := r.URL.Query()
		fmt.Fprintf(w, `{"subject":%q}`, strings.TrimSpace("node "+args.Get("pod")))
	})
}

// A bundle explains the pods of the last events that failed, each once.
func TestDoctorExplainsPods(t *testing.T) {
	p := newPatient(t, bareAgent(t))
	p.agent.explain()
	p.agent.mux.HandleFunc(localapi.PathEvents, func(w http.ResponseWriter, r *http.Request) {
		e := json.NewEncoder(w)
		for i := range 60 {
			if r.URL.Query().Get("failed") == "true" {
				_ = e.Encode(controller.Record{SeqNum: uint64(i), Subject: controller.Subject{Pod: fmt.Sprint("ns/p", i%30)}})
			}
		}
		_ = e.Encode(controller.Record{SeqNum: 60})
	})
	p.Expect(p.doctor(t, "-f", p.path("out")).code).To(Equal(0))
	lines := strings.Split(strings.TrimSpace(p.read(p.path("out"))["explain.jsonl"]), "\n")
	p.Expect(lines).To(HaveLen(1 + maxExplained))
	p.Expect(lines[:3]).To(Equal([]string{`{"subject":"node"}`, `{"subject":"node ns/p29"}`, `{"subject":"node ns/p28"}`}))
}

// doctor overwrites no file, also not through a symbolic link, and leaves none that is
// not complete.
func TestDoctorOverwritesNothing(t *testing.T) {
	p := newPatient(t, newAgent(t))
	precious := p.file("precious", "precious")
	p.Expect(os.Symlink(precious, p.path("link"))).To(Succeed())
	p.Expect(os.Symlink(p.path("nowhere"), p.path("dangling"))).To(Succeed())
	for _, name := range []string{"precious", "link", "dangling"} {
		got := p.doctor(t, "-f", p.path(name))
		p.Expect(got.code).To(Equal(exitFailed), name)
		p.Expect(got.err).To(ContainSubstring("name another file"), name)
	}
	p.Expect(os.ReadFile(precious)).To(BeEquivalentTo("precious"))
	p.Expect(p.path("nowhere")).NotTo(BeAnExistingFile())
	p.Expect(p.doctor(t, "-f", p.path("none/out")).code).To(Equal(exitFailed))
}

// Without an agent the bundle has what the machine knows, and names the rest.
func TestDoctorWithoutAnAgent(t *testing.T) {
	p := newPatient(t, &fakeAgent{socket: noListener(t)})
	got := p.doctor(t, "--config", contivConf, "-f", p.path("out"), "-o", "json")
	p.Expect(got.code).To(Equal(0), got.err)
	var r doctorReport
	p.Expect(json.Unmarshal([]byte(got.out), &r)).To(Succeed())
	p.Expect(r.Parts).To(ConsistOf("versions.json", "contiv.conf.yaml", "kernel.json"))
	p.Expect(r.Missing).To(HaveLen(len(apiParts()) + 2))
	p.Expect(r.Missing).To(HaveEach(HaveField("Reason", ContainSubstring("no agent answers"))))
	p.Expect(p.read(p.path("out"))).To(HaveKeyWithValue("contents.txt", And(
		ContainSubstring("status.json: missing: no agent answers"), ContainSubstring("agent.log: missing: "))))
}

// An agent that answers some requests only gives a bundle with these parts.
func TestDoctorOfAnAgentThatFails(t *testing.T) {
	p := newPatient(t, bareAgent(t))
	p.blind = errors.New("operation not permitted")
	p.agent.json(localapi.PathStatus, someStatus())
	p.agent.text(localapi.PathCheck, 500, `{"error": "the database is closed"}`)
	got := p.doctor(t, "--config", p.path("none.conf"), "-f", p.path("out"))
	p.Expect(got.code).To(Equal(0), got.err)
	p.Expect(got.out).To(And(
		ContainSubstring("missing: check.json: the database is closed"),
		ContainSubstring("missing: kernel.json: operation not permitted"),
		ContainSubstring("missing: contiv.conf.yaml: contiv.conf cannot be read (no such file or directory): name it with --config"),
		ContainSubstring("missing: agent.log: contiv.conf cannot be read, so its secrets cannot be removed from the log"),
	))
	p.Expect(p.read(p.path("out"))).To(HaveKey("status.json"))
}

// Secrets that an agent repeats in all of its answers are nowhere in the bundle or in
// the output. They are those of the configuration, of the files that it names and of
// the environment, and those in the names of files.
func TestDoctorLeavesNoSecret(t *testing.T) {
	p := newPatient(t, bareAgent(t))
	password, key := p.file("PLANTED-password-file", "PLANTED-p4ssw0rd\n"), p.file("PLANTED-key.pem", "-----BEGIN EC PRIVATE KEY-----\nPLANTEDkeylineone\n-----END EC PRIVATE KEY-----\n")
	kubeconfig := p.file("PLANTED-kubeconfig", "users: [{user: {token: PLANTEDtokenofthekubeconfig}}]\n")
	conf := p.file("PLANTED.conf", fmt.Sprintf(`
# PLANTED-comment
PLANTED-unknown-key: {PLANTED-deeper: [PLANTED-deepest]}
cadastre:
  podBlocks: PLANTED-mode
  coolDown: PLANTED-duration
  kvdb:
    type: etcd
    endpoints: ["https://PLANTED-user:PLANTED-url-password@10.0.0.1:2379/PLANTED-path"]
    prefix: /PLANTED-prefix/
    username: PLANTED-etcd-user
    passwordFile: %q
    key: PLANTED-key.pem
    kubeconfig: %q
  rest: {listen: "PLANTED-host:443", cert: /PLANTED/tls.crt}
`, password, kubeconfig))
	p.environ = []string{"HOME=/home", "ETCD_PASSWORD=PLANTED-environment", "AWS_SECRET_ACCESS_KEY=PLANTED/aws+key", "https_proxy=http://PLANTED-proxy.example:3128"}
	leaks := strings.Join([]string{
		"PLANTED-unknown-key", "PLANTED-deeper", "PLANTED-deepest", "PLANTED-mode", "PLANTED-duration", "PLANTED-user", "PLANTED-url-password", "PLANTED-path",
		"/PLANTED-prefix/cluster", "PLANTED-etcd-user", "PLANTED-p4ssw0rd", "PLANTEDkeylineone", "PLANTEDtokenofthekubeconfig", "PLANTED-host",
		"open " + password + ": permission denied", "open " + key, "open " + conf, kubeconfig, "/PLANTED/tls.crt", "PLANTED-environment", "PLANTED/aws+key",
		"PLANTED%2Faws%2Bkey", "http://PLANTED-proxy.example:3128", "Bearer PLANTED-other-token", "https://a:PLANTED@b/",
	}, "\n")
	p.kernel = &witness.KernelView{Namespaces: []witness.Namespace{{Paths: []string{"/srv/PLANTED-state/netns", password}}}, Hidden: leaks}
	s := someStatus()
	s.ConfigFile, s.StateDir, s.KVDBError = conf, "/srv/PLANTED-state", leaks
	p.agent.json(localapi.PathStatus, s)
	for _, path := range []string{localapi.PathCheck, localapi.PathLeases, localapi.PathNodes, localapi.PathPools, localapi.PathDockerPools, localapi.PathHistory, localapi.PathReclaims, localapi.PathExplain} {
		p.agent.json(path, map[string]string{"text": leaks})
	}
	for _, path := range []string{localapi.PathEvents, localapi.PathMetrics, localapi.PathLogs} {
		p.agent.text(path, 200, leaks+fmt.Sprintf("\n%q\n", leaks))
	}
	got := p.doctor(t, "-f", p.path("PLANTED-out"))
	p.Expect(got.code).To(Equal(0), got.err)
	files := p.read(p.path("PLANTED-out"))
	p.Expect(files).To(HaveLen(16))
	for name, text := range files {
		p.Expect(name).NotTo(ContainSubstring("PLANTED"))
		for line := range strings.Lines(text) {
			if strings.Contains(line, "PLANTED") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	p.Expect(files["contiv.conf.yaml"]).To(And(ContainSubstring("https://10.0.0.1:2379"), ContainSubstring("# removed: ")))

	archive, err := os.ReadFile(p.path("PLANTED-out"))
	p.Expect(err).NotTo(HaveOccurred())
	p.Expect(bytes.Contains(archive, []byte("PLANTED"))).To(BeFalse(), "nor in a header")
}

// An agent that hangs costs one long time to wait, and not one for each part.
func TestDoctorOfAnAgentThatHangs(t *testing.T) {
	p := newPatient(t, bareAgent(t))
	p.agent.mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p.agent.text(localapi.PathMetrics, 500, "broken")
	d := &doctor{client: clientOf(p.agent.socket), patience: readTimeout}
	_, err := d.ask(t.Context(), localapi.PathMetrics)
	p.Expect(err).To(MatchError(ContainSubstring("broken")))
	p.Expect(d.patience).To(Equal(readTimeout), "an error is an answer")
	within, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	_, err = d.ask(within, localapi.PathEvents)
	p.Expect(err).To(MatchError(ContainSubstring("does not answer in time")))
	p.Expect(d.patience).To(Equal(readTimeout / impatience))
}
