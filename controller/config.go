// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import "time"

// Config holds the loop's parameters, named as in controller.conf.
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
	HealingBackoffLimit     time.Duration // of the delay, which doubles
	MaxHealingAttempts      int           // in a row; then the error is fatal

	EventTimeout time.Duration // bounds the processing of an event, and the wait of a blocking one in the queue

	EnableVerification bool // verify after each clean event that a resync changes nothing; slow, for tests

	RecordEventHistory            bool
	historySize                   int
	EventHistoryAgeLimit          time.Duration
	PermanentlyRecordedInitPeriod time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		QueueSize: 1000, EnableRetry: true, DelayRetry: time.Second, MaxRetryAttempts: 3, EnableExpBackoffRetry: true,
		StartupResyncDeadline: 30 * time.Second, PeriodicHealingInterval: 30 * time.Second,
		DelayAfterErrorHealing: 5 * time.Second, HealingBackoffLimit: 5 * time.Minute, MaxHealingAttempts: 8,
		EventTimeout: time.Minute, RecordEventHistory: true, historySize: 1000, EventHistoryAgeLimit: time.Hour,
		PermanentlyRecordedInitPeriod: 10 * time.Minute,
	}
}
