// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package mototest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

//go:embed strict.py
var strict []byte

// Region is the region of all objects.
const Region = "us-east-1"

// Server is a running moto_server.
type Server struct {
	URL string // of the API
}

// Start starts a server that ends with the test. Without moto it skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	python, err := interpreter(t.Context())
	if err != nil {
		t.Skipf("SKIPPED: moto is not usable: %v (pip install 'moto[server]')", err)
	}
	script := filepath.Join(t.TempDir(), "strict.py")
	if err := os.WriteFile(script, strict, 0o600); err != nil {
		t.Fatal(err)
	}
	url, err := run(t, python, script)
	if err != nil {
		t.Fatalf("start moto: %v", err)
	}
	return &Server{url}
}

// interpreter returns the Python that has moto.
func interpreter(ctx context.Context) (string, error) {
	program, err := exec.LookPath("moto_server")
	if err != nil {
		return "", err
	}
	var errs []error
	for _, python := range []string{shebang(program), filepath.Join(filepath.Dir(program), "python3"), "python3"} {
		if python == "" {
			continue
		}
		out, err := exec.CommandContext(
			ctx,
			python,
			"-W",
			"ignore",
			"-c",
			"import moto.server, moto.ec2",
		).CombinedOutput()
		if err == nil {
			return python, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w: %s", python, err, lastLine(string(out))))
	}
	return "", errors.Join(errs...)
}

// shebang returns the Python interpreter of a script, or "" if it has another one.
func shebang(program string) string {
	file, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	line, _ := bufio.NewReader(file).ReadString('\n')
	path, ok := strings.CutPrefix(strings.TrimSpace(line), "#!")
	if !ok || !strings.Contains(filepath.Base(path), "python") {
		return ""
	}
	return path
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// run starts the server on a free port, which it reads from the server's first lines.
func run(t testing.TB, python, script string) (string, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(python, "-W", "ignore", "-u", script, "-H", "127.0.0.1", "-p", "0")
	cmd.Env = append(os.Environ(), "MOTO_EC2_LOAD_DEFAULT_AMIS=false", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	gone, err := start(cmd)
	if err != nil {
		return "", errors.Join(err, reader.Close(), writer.Close())
	}
	_ = writer.Close()
	ready, ended := make(chan string, 1), make(chan struct{})
	go func() { // reads until the server ends
		defer close(ended)
		address := regexp.MustCompile(`Running on (http://127\.0\.0\.1:\d+)`)
		var head []string
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			if found := address.FindStringSubmatch(lines.Text()); found != nil {
				ready <- found[1]
			}
			if head = append(head, lines.Text()); len(head) > 40 {
				head = head[1:]
			}
		}
		select {
		case ready <- "ended: " + strings.Join(head, "\n"):
		default:
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-gone
		<-ended
		_ = reader.Close()
	})
	answer := <-ready
	if !strings.HasPrefix(answer, "http") {
		return "", errors.New(answer)
	}
	return answer, nil
}

// start starts a process, and closes the channel when it has ended. The thread that starts it
// must not end before: its end would kill the process.
func start(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	return done, <-started
}

// Credentials are those of every test.
func Credentials() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test", Source: "mototest"}, nil
	})
}

// Client returns a client of the server, for a test's own look at the cloud.
func (s *Server) Client() *ec2.Client {
	return ec2.New(ec2.Options{
		Region:       Region,
		BaseEndpoint: aws.String(s.URL),
		Credentials:  Credentials(),
		Retryer:      aws.NopRetryer{},
	})
}
