// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import "time"

// Config is the loop's parameters, named as in controller.conf.
type Config struct {
	QueueSize int // events that may wait

	EnableRetry           bool
	DelayRetry            time.Duration
	MaxRetryAttempts      int
	EnableExpBackoffRetry bool

	StartupResyncDeadline   time.Duration
	EnablePeriodicHealing   bool
	PeriodicHealingInterval time.Duration
	DelayAfterErrorHealing  time.Duration
	HealingBackoffLimit     time.Duration // the delay doubles up to this
	MaxHealingAttempts      int           // in a row; then the error is fatal

	EventTimeout time.Duration // of one event's processing, and of its waiting if somebody waits for it

	EnableVerification bool // after every clean event see whether a resync would change anything; for tests: it is slow

	RecordEventHistory            bool
	HistorySize                   int
	EventHistoryAgeLimit          time.Duration
	PermanentlyRecordedInitPeriod time.Duration
}

// DefaultConfig is the defaults.
func DefaultConfig() Config {
	return Config{
		QueueSize: 1000, EnableRetry: true, DelayRetry: time.Second, MaxRetryAttempts: 3, EnableExpBackoffRetry: true,
		StartupResyncDeadline: 30 * time.Second, PeriodicHealingInterval: 30 * time.Second,
		DelayAfterErrorHealing: 5 * time.Second, HealingBackoffLimit: 5 * time.Minute, MaxHealingAttempts: 8,
		EventTimeout: time.Minute, RecordEventHistory: true, HistorySize: 1000, EventHistoryAgeLimit: time.Hour,
		PermanentlyRecordedInitPeriod: 10 * time.Minute,
	}
}
