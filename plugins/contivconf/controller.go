// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"strings"
	"time"
)

// Controller is the event loop's settings: the keys of Contiv's
// controller.conf, and three of ours.
type Controller struct {
	EnableRetry           bool          `json:"enableRetry"`
	DelayRetry            time.Duration `json:"delayRetry"`
	MaxRetryAttempts      int           `json:"maxRetryAttempts"`
	EnableExpBackoffRetry bool          `json:"enableExpBackoffRetry"`

	DelayLocalResync      time.Duration `json:"delayLocalResync"`
	StartupResyncDeadline time.Duration `json:"startupResyncDeadline"`

	EnablePeriodicHealing   bool          `json:"enablePeriodicHealing"`
	PeriodicHealingInterval time.Duration `json:"periodicHealingInterval"`
	DelayAfterErrorHealing  time.Duration `json:"delayAfterErrorHealing"`
	HealingBackoffLimit     time.Duration `json:"healingBackoffLimit"` // ours: the longest pause between two healing attempts
	MaxHealingAttempts      int           `json:"maxHealingAttempts"`  // ours: failed ones in a row before the agent gives up

	RemoteDBProbingInterval time.Duration `json:"remoteDBProbingInterval"`
	EventTimeout            time.Duration `json:"eventTimeout"` // ours: the deadline of one event

	RecordEventHistory            bool          `json:"recordEventHistory"`
	EventHistoryAgeLimit          time.Duration `json:"eventHistoryAgeLimit" conf:"minutes"`
	PermanentlyRecordedInitPeriod time.Duration `json:"permanentlyRecordedInitPeriod" conf:"minutes"`

	EnableVerification bool `json:"enableVerification"`
}

func defaultController() Controller {
	return Controller{
		EnableRetry: true, DelayRetry: time.Second, MaxRetryAttempts: 3, EnableExpBackoffRetry: true,
		DelayLocalResync: 5 * time.Second, StartupResyncDeadline: 30 * time.Second,
		PeriodicHealingInterval: 30 * time.Second, DelayAfterErrorHealing: 5 * time.Second,
		HealingBackoffLimit: 5 * time.Minute, MaxHealingAttempts: 8,
		RemoteDBProbingInterval: 3 * time.Second, EventTimeout: time.Minute,
		RecordEventHistory: true, EventHistoryAgeLimit: time.Hour, PermanentlyRecordedInitPeriod: 10 * time.Minute,
	}
}

func (c *Controller) validate(p *problems) {
	const section, day, year = "cadastre.controller.", 24 * time.Hour, 365 * 24 * time.Hour
	for _, d := range []struct {
		key         string
		value, most time.Duration
		zero        bool // 0 has a meaning: at once, or never
	}{
		{"delayRetry", c.DelayRetry, day, true},
		{"delayLocalResync", c.DelayLocalResync, day, true},
		{"startupResyncDeadline", c.StartupResyncDeadline, day, false},
		{"periodicHealingInterval", c.PeriodicHealingInterval, day, false},
		{"delayAfterErrorHealing", c.DelayAfterErrorHealing, day, true},
		{"healingBackoffLimit", c.HealingBackoffLimit, day, false},
		{"remoteDBProbingInterval", c.RemoteDBProbingInterval, day, false},
		{"eventTimeout", c.EventTimeout, day, false},
		{"eventHistoryAgeLimit", c.EventHistoryAgeLimit, year, true},
		{"permanentlyRecordedInitPeriod", c.PermanentlyRecordedInitPeriod, year, true},
	} {
		checkDuration(p, section+d.key, d.value, d.most, d.zero)
	}
	for _, n := range []struct {
		key                string
		value, least, most int
	}{
		{"maxRetryAttempts", c.MaxRetryAttempts, 0, 1000},
		{"maxHealingAttempts", c.MaxHealingAttempts, 1, 1000},
	} {
		if n.value < n.least || n.value > n.most {
			p.add(RuleRange, section+n.key, decimal(n.value), "is out of range: write a number from %d to %d", n.least, n.most)
		}
	}
}

func checkDuration(p *problems, field string, value, most time.Duration, zero bool) {
	problem := ""
	switch {
	case value == 0 && zero:
		return
	case value < 0:
		problem = "is negative"
	case value < time.Millisecond:
		problem = "is too short (a number without a unit counts nanoseconds)"
	case value > most:
		problem = "is too long"
	default:
		return
	}
	p.add(RuleRange, field, short(value), "%s: write a duration from 1ms to %s", problem, short(most))
}

// short is d as people write it: 24h for 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
