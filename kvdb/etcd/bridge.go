// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge is a logger for etcd's client, which says everything at level Debug:
// what it warns of, a caller is told by errors.
func bridge(log *slog.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(core{log})
}

type core struct{ log *slog.Logger }

// Enabled implements zapcore.Core.
func (c core) Enabled(zapcore.Level) bool {
	return c.log.Enabled(context.Background(), slog.LevelDebug)
}

// With implements zapcore.Core.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log.With(attributes(fields)...)}
}

// Check implements zapcore.Core.
func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Debug("etcd client: "+e.Message, attributes(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (c core) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	var all []any
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder()
		f.AddTo(enc)
		for key, value := range enc.Fields {
			all = append(all, slog.Any(key, value))
		}
	}
	return all
}
