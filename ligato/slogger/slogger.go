// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package slogger adapts the loggers of cn-infra to log/slog, so that our packages log
// through the logger that Ligato's log manager controls.
package slogger

import (
	"context"
	"log/slog"

	"github.com/ligato/cn-infra/infra"
	"github.com/ligato/cn-infra/logging"
)

// New returns a slog.Logger over a logger of cn-infra. The level of that logger, which may
// change while the agent runs, decides what is logged.
func New(log logging.Logger) *slog.Logger { return slog.New(&handler{log: log}) }

// handler is a slog.Handler. It is immutable.
type handler struct {
	log    logging.Logger
	fields logging.Fields
	prefix string // of the keys, from groups
}

// Enabled reports whether the level of the logger lets a record pass.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return h.log.GetLevel() >= levelOf(level)
}

func levelOf(level slog.Level) logging.LogLevel {
	switch {
	case level >= slog.LevelError:
		return logging.ErrorLevel
	case level >= slog.LevelWarn:
		return logging.WarnLevel
	case level >= slog.LevelInfo:
		return logging.InfoLevel
	default:
		return logging.DebugLevel
	}
}

// Handle logs a record with its attributes as fields.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	fields := make(logging.Fields, len(h.fields)+r.NumAttrs())
	for k, v := range h.fields {
		fields[k] = v
	}
	r.Attrs(func(a slog.Attr) bool {
		put(fields, h.prefix, a)
		return true
	})
	out := h.log.WithFields(fields)
	switch levelOf(r.Level) {
	case logging.ErrorLevel:
		out.Error(r.Message)
	case logging.WarnLevel:
		out.Warn(r.Message)
	case logging.InfoLevel:
		out.Info(r.Message)
	default:
		out.Debug(r.Message)
	}
	return nil
}

// put adds an attribute. The members of a group have its name before theirs.
func put(fields logging.Fields, prefix string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() != slog.KindGroup {
		if a.Key != "" {
			fields[prefix+a.Key] = value.Any()
		}
		return
	}
	if a.Key != "" {
		prefix += a.Key + "."
	}
	for _, member := range value.Group() {
		put(fields, prefix, member)
	}
}

// WithAttrs returns a handler that adds attributes to each record.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := make(logging.Fields, len(h.fields)+len(attrs))
	for k, v := range h.fields {
		fields[k] = v
	}
	for _, a := range attrs {
		put(fields, h.prefix, a)
	}
	return &handler{h.log, fields, h.prefix}
}

// WithGroup returns a handler that puts the name of a group before the keys that follow.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{h.log, h.fields, h.prefix + name + "."}
}

// Named gives a plugin its name, and a logger if it has none.
func Named(deps *infra.PluginDeps, name string) {
	deps.PluginName = infra.PluginName(name)
	if deps.Log == nil {
		deps.Log = logging.ForPlugin(name)
	}
}
