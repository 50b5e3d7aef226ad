// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/internal/redact"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// doctorReport holds the output of doctor.
type doctorReport struct {
	File    string        `json:"file"`
	Bytes   int64         `json:"bytes"`
	Parts   []string      `json:"parts"`
	Missing []missingPart `json:"missing"`
}

// missingPart is a part of the bundle that could not be collected.
type missingPart struct {
	Part   string `json:"part"`
	Reason string `json:"reason"`
}

func (a *app) doctorCmd() *cobra.Command {
	var file, config string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Write a support bundle without secrets",
		Long: `doctor writes what a maintainer asks for into one archive: versions,
configuration, status, findings of check, leases, events, history, explanations of
pods that failed, metrics, the network namespaces of the kernel, and the last lines of
the agent's log. Without an agent it writes what there is, and names the parts that
are missing.

The bundle has addresses and the names of pods and nodes. It has no secrets: of
contiv.conf only known harmless values stay, what was removed there is removed from
every other part, and so is all that has the form of a credential. The archive is
readable by its owner only, and doctor overwrites no file.`,
		Example: `  cadastre doctor
  cadastre doctor -f /tmp/node-1.tar.gz
  kubectl -n cadastre-system exec cadastre-agent-x7k2p -- /cadastre doctor -f - > node-1.tar.gz`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if err := a.doctor(ctx, file, config); err != nil {
				return fmt.Errorf("doctor: %w", err)
			}
			return nil
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "",
		"the archive; \"-\" is standard output (default cadastre-doctor-TIME.tar.gz in this directory)")
	cmd.Flags().StringVar(&config, "config", "", "contiv.conf (default the file that the agent has read)")
	return cmd
}

func (a *app) doctor(ctx context.Context, file, config string) error {
	file = cmp.Or(file, "cadastre-doctor-"+a.now().UTC().Format("20060102T150405Z")+".tar.gz")
	out, err := a.createBundle(file)
	if err != nil {
		return err
	}
	d := &doctor{app: a, client: a.client(), texts: redact.NewTexts(), config: config, patience: readTimeout}
	d.progress = a.progress(
		ctx,
		"doctor",
		step{name: "collect", unit: "parts", total: uint64(len(apiParts())) + ownParts},
	)
	d.collect(ctx)
	d.progress.end()
	written, err := d.write(out)
	if err = errors.Join(err, out.Close()); err != nil {
		if file != "-" {
			err = errors.Join(err, os.Remove(file))
		}
		return err
	}
	if file == "-" {
		return nil
	}
	r := d.report(file, written)
	return a.print(r, func(bool) string { return r.text() })
}

// createBundle creates the archive, which only its owner may read.
func (a *app) createBundle(file string) (io.WriteCloser, error) {
	if file == "-" {
		return nopCloser{a.stdout}, nil
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("--file: %q exists: name another file", file)
	}
	return out, err
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (r doctorReport) text() string {
	text := fmt.Sprintf(
		"wrote %s, %d bytes: %s\n",
		columns.Clean(r.File),
		r.Bytes,
		plural(len(r.Parts), "part", "parts"),
	)
	for _, m := range r.Missing {
		text += "missing: " + m.Part + ": " + columns.Clean(m.Reason) + "\n"
	}
	return text + "It has addresses and the names of pods and nodes: look into it before you send it.\n"
}

// maxPart bounds one part of the bundle.
const maxPart = 32 << 20

// doctor collects the parts of one bundle.
type doctor struct {
	*app
	client *client
	texts  *redact.Texts
	config string // path of contiv.conf; "": to be found out
	// patience is the time for one question. An agent that has let one time pass gets
	// less for the others: a bundle has 14 questions, and one about each failed pod.
	patience time.Duration

	progress *progress

	configRead bool
	parts      []part
	missing    []missingPart
}

// part is a file of the bundle.
type part struct {
	name string
	text []byte
}

// apiParts lists the parts that the agent's API answers.
func apiParts() [][2]string {
	return [][2]string{
		{"status.json", localapi.PathStatus},
		{"check.json", localapi.PathCheck},
		{"leases.json", localapi.PathLeases},
		{"events.jsonl", localapi.PathEvents},
		{"nodes.json", localapi.PathNodes},
		{"pools.json", localapi.PathPools},
		{"docker-pools.json", localapi.PathDockerPools},
		{"history.json", localapi.PathHistory + "?limit=5000"},
		{"reclaims.json", localapi.PathReclaims},
		{"metrics.txt", localapi.PathMetrics},
	}
}

// ownParts counts the parts beside those of the API: versions, configuration,
// explanations, kernel and log.
const ownParts = 5

// collect reads all parts. What must be removed is known when the last one is read.
func (d *doctor) collect(ctx context.Context) {
	var status localapi.Status
	versions := d.versions(ctx, &status)
	d.add("versions.json", versions, nil)
	d.addConfig(cmp.Or(d.config, status.ConfigFile, "/etc/cadastre/contiv.conf"))
	d.hidePlaces(status)
	for _, p := range apiParts() {
		text, err := d.ask(ctx, p[1])
		d.add(p[0], text, err)
	}
	d.addExplanations(ctx)
	d.addKernel(ctx)
	d.addLog(ctx)
}

func (d *doctor) add(name string, text []byte, err error) {
	d.progress.add(1)
	if err != nil {
		d.missing = append(d.missing, missingPart{name, err.Error()})
		return
	}
	d.parts = append(d.parts, part{name, text})
}

// impatience divides the time for a question after one that was not answered in time.
const impatience = 15

// within calls f with a context that ends with the patience for one question.
func (d *doctor) within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	err := f(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		d.patience = min(d.patience, readTimeout/impatience)
	}
	return err
}

// ask reads the answer to GET path.
func (d *doctor) ask(ctx context.Context, path string) (text []byte, err error) {
	err = d.within(ctx, func(ctx context.Context) error {
		text, err = d.read(ctx, path)
		return err
	})
	return text, err
}

func (d *doctor) read(ctx context.Context, path string) ([]byte, error) {
	answer, err := d.client.do(ctx, "GET", path, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	text, err := io.ReadAll(io.LimitReader(answer, maxPart+1))
	switch {
	case err != nil:
		return nil, d.client.plain(ctx, err)
	case len(text) > maxPart:
		return nil, fmt.Errorf("%s has more than %d MiB: read it with curl --unix-socket", path, maxPart>>20)
	}
	return text, nil
}

// addConfig adds contiv.conf, cleaned, and has its secrets hidden in all other parts.
func (d *doctor) addConfig(path string) {
	const name = "contiv.conf.yaml"
	text, err := readSmall(path)
	if err != nil {
		d.add(name, nil, fmt.Errorf("contiv.conf cannot be read (%w): name it with --config", err))
		return
	}
	d.configRead = true
	conf, err := redact.CleanConfig(text, d.texts)
	for _, file := range conf.Files {
		d.hideFile(filepath.Dir(path), file)
	}
	if err != nil {
		d.add(name, nil, fmt.Errorf("contiv.conf is left out: %w", err))
		return
	}
	head := fmt.Sprintf("# removed: %s, %s\n",
		plural(conf.Values, "value", "values"), plural(conf.Unknown, "unknown key", "unknown keys"))
	d.add(name, append([]byte(head), conf.YAML...), nil)
}

// hideFile has the content of a file hidden that the configuration names, such as a
// password's or a key's.
func (d *doctor) hideFile(dir, file string) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	if content, err := readSmall(file); err == nil {
		d.texts.HideContent(content)
	}
}

// readSmall reads a regular file that has at most the size of a ConfigMap.
func readSmall(path string) ([]byte, error) {
	const most = 1 << 20
	info, err := os.Stat(path)
	if failed, ok := errors.AsType[*os.PathError](err); ok {
		return nil, failed.Err // without the path, which may be a secret
	}
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("it is of type %s: want a file", info.Mode().Type())
	case info.Size() > most:
		return nil, fmt.Errorf("it has %d bytes: want at most %d", info.Size(), most)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(file, most))
}

// hidePlaces has paths hidden that are not those of an installed agent, and the values of
// environment variables that may be credentials.
func (d *doctor) hidePlaces(s localapi.Status) {
	for path, usual := range map[string]string{
		d.config:        "",
		s.ConfigFile:    "/etc/cadastre/contiv.conf",
		s.StateDir:      "/var/lib/cadastre",
		d.client.socket: defaultSocket,
	} {
		if path != usual {
			d.texts.Hide(path)
			d.texts.Hide(filepath.Dir(path))
		}
	}
	for _, variable := range d.environ() {
		name, value, _ := strings.Cut(variable, "=")
		for _, word := range []string{"PASS", "SECRET", "TOKEN", "KEY", "CREDENTIAL", "AUTH", "PROXY"} {
			if strings.Contains(strings.ToUpper(name), word) {
				d.texts.Hide(value)
			}
		}
	}
}

// addLog adds the last lines of the agent's log, if what must be removed from it is known.
func (d *doctor) addLog(ctx context.Context) {
	const name = "agent.log"
	if !d.configRead {
		d.add(name, nil, errors.New("contiv.conf cannot be read, so its secrets cannot be removed from the log"))
		return
	}
	text, err := d.ask(ctx, localapi.PathLogs)
	if err != nil {
		err = fmt.Errorf("%w; journalctl -u cadastre-agent, or kubectl -n cadastre-system logs, may have it", err)
	}
	d.add(name, text, err)
}

func (d *doctor) report(file string, size int64) doctorReport {
	r := doctorReport{File: file, Bytes: size, Parts: []string{}, Missing: []missingPart{}}
	for _, p := range d.parts {
		r.Parts = append(r.Parts, p.name)
	}
	for _, m := range d.missing {
		r.Missing = append(r.Missing, missingPart{m.Part, string(d.texts.Clean([]byte(m.Reason)))})
	}
	return r
}

// write writes the archive: every part, and a list of what it has and lacks.
func (d *doctor) write(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	zipped := gzip.NewWriter(counted)
	archive := tar.NewWriter(zipped)
	all := append([]part{{"contents.txt", d.contents()}}, d.parts...)
	for _, p := range all {
		text := d.texts.Clean(p.text)
		header := &tar.Header{
			Name:    "cadastre-doctor/" + p.name,
			Mode:    0o600,
			Size:    int64(len(text)),
			ModTime: d.now().UTC().Truncate(time.Second),
		}
		if err := archive.WriteHeader(header); err != nil {
			return counted.n, err
		}
		if _, err := archive.Write(text); err != nil {
			return counted.n, err
		}
	}
	err := errors.Join(archive.Close(), zipped.Close())
	return counted.n, err
}

func (d *doctor) contents() []byte {
	var b bytes.Buffer
	for _, p := range d.parts {
		fmt.Fprintf(&b, "%s: %d bytes\n", p.name, len(p.text))
	}
	for _, m := range d.missing {
		fmt.Fprintf(&b, "%s: missing: %s\n", m.Part, m.Reason)
	}
	return b.Bytes()
}

// counter counts the bytes that it writes.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
