// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Operator is a running operator.
type Operator struct {
	log     string
	process *stage.Process
}

// Lease is the name of the Lease that the operators compete for, which their role permits.
const Lease = "cadastre-operator"

// StartOperator starts an operator of the provider with the rights of the modes that were
// applied. It competes with the others.
func (l *Lab) StartOperator(flags ...string) *Operator {
	l.t.Helper()
	o := &Operator{log: filepath.Join(l.dir, fmt.Sprintf("operator-%d.log", len(l.operators)+1))}
	args := append([]string{
		"--kubeconfig=" + l.operatorAccount(),
		"--bind-address=",
		"--policies-not-enforced",
		"--leader-elect-resource-namespace=" + namespace,
		"--leader-elect-resource-name=" + Lease,
		"--leader-elect-lease-duration=4s",
		"--leader-elect-renew-deadline=3s",
		"--leader-elect-retry-period=500ms",
	}, flags...)
	log, err := os.Create(o.log)
	l.must(err)
	cmd := exec.Command(filepath.Join(l.bin, "cadastre-operator-"+l.config.Cloud), args...)
	cmd.Stdout, cmd.Stderr = log, log
	o.process, err = stage.Start(cmd, func(f func() error) error { return f() })
	l.must(err)
	l.must(log.Close()) // the process has its own
	l.operators = append(l.operators, o)
	l.t.Cleanup(func() {
		_ = o.process.Kill() // it may have ended
		if l.t.Failed() {
			l.t.Logf("the log of %s ends with:\n%s", filepath.Base(o.log), tail(o.log, 6000))
		}
	})
	return o
}

// holder returns the holder of the Lease.
func (l *Lab) holder() (string, error) {
	lease, err := l.Client.CoordinationV1().Leases(
		namespace,
	).Get(
		l.t.Context(),
		Lease,
		metav1.GetOptions{},
	)
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// identity returns the name that an operator has in the Lease.
func (o *Operator) identity() string {
	found := regexp.MustCompile(`waiting for the lease.*identity="?([^ "\n]+)`).FindStringSubmatch(tail(o.log, 1<<30))
	if found == nil {
		return ""
	}
	return found[1]
}

// Leader waits for an operator that leads, and returns it.
func (l *Lab) Leader() (leader *Operator) {
	l.t.Helper()
	l.Eventually(func() (err error) {
		leader, err = l.leader()
		return err
	}, Patience, Pace).Should(Succeed())
	return leader
}

// leader returns the running operator that holds the Lease.
func (l *Lab) leader() (*Operator, error) {
	holder, err := l.holder()
	if err != nil {
		return nil, err
	}
	for _, o := range l.operators {
		select {
		case <-o.process.Done():
			continue
		default:
		}
		if id := o.identity(); id != "" && id == holder {
			return o, nil
		}
	}
	return nil, fmt.Errorf("no running operator has the name %q of the Lease's holder", holder)
}

// Freeze stops an operator that leads with SIGSTOP, in the middle of whatever it does, and
// waits until another one leads.
func (l *Lab) Freeze(o *Operator) {
	l.t.Helper()
	l.must(o.process.Signal(syscall.SIGSTOP))
	l.Eventually(l.leader, Patience, Pace).ShouldNot(Equal(o))
}

// Thaw lets an operator go on that was stopped by Freeze. It finds that it leads no more,
// and ends.
func (l *Lab) Thaw(o *Operator) {
	l.t.Helper()
	l.must(o.process.Signal(syscall.SIGCONT))
	l.Eventually(o.process.Done(), Patience, Pace).Should(BeClosed())
}

// Kill ends an operator with SIGKILL.
func (l *Lab) Kill(o *Operator) {
	l.t.Helper()
	l.must(o.process.Kill())
}

// StopOperators ends all operators in good order.
func (l *Lab) StopOperators() {
	l.t.Helper()
	for _, o := range l.operators {
		select {
		case <-o.process.Done():
		default:
			l.must(o.process.Stop(Patience))
		}
	}
}

// Logs returns the lines of all operators' logs that contain a text.
func (l *Lab) Logs(text string) (lines []string) {
	for _, o := range l.operators {
		for line := range strings.Lines(tail(o.log, 1<<30)) {
			if strings.Contains(line, text) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
