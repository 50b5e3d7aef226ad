// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package slogger

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/ligato/cn-infra/logging"
	"github.com/ligato/cn-infra/logging/logrus"
	. "github.com/onsi/gomega"
)

func TestRecordsReachTheLoggerOfCnInfra(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	target := logrus.NewLogger("test")
	target.SetOutput(&out)
	target.SetLevel(logging.InfoLevel)
	log := New(target).With("node", "a").WithGroup("pod").With("name", "web")

	log.Debug("quiet")
	g.Expect(out.String()).To(BeEmpty())
	target.SetLevel(logging.DebugLevel)
	log.Debug("loud")
	g.Expect(out.String()).To(SatisfyAll(ContainSubstring("level=debug"), ContainSubstring("msg=loud")))

	for want, do := range map[string]func(string, ...any){
		"level=info":    log.Info,
		"level=warning": log.Warn,
		"level=error":   log.Error,
	} {
		out.Reset()
		do("text", "error", errors.New("broken"), slog.Group("at", "line", 7), slog.Group("", "inline", true))
		g.Expect(out.String()).To(SatisfyAll(
			ContainSubstring(want),
			ContainSubstring("msg=text"),
			ContainSubstring("node=a"),
			ContainSubstring("pod.name=web"),
			ContainSubstring("pod.error=broken"),
			ContainSubstring("pod.at.line=7"),
			ContainSubstring("pod.inline=true"),
		))
	}
}
