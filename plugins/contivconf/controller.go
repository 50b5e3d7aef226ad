// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Controller holds the settings of the event loop: the keys of Contiv's
// controller.conf, and three of Cadastre.
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
	HealingBackoffLimit     time.Duration `json:"healingBackoffLimit"` // not in Contiv: the longest pause between two healing attempts
	MaxHealingAttempts      int           `json:"maxHealingAttempts"`  // not in Contiv: failed attempts in a row before the agent ends

	RemoteDBProbingInterval time.Duration `json:"remoteDBProbingInterval"`
	EventTimeout            time.Duration `json:"eventTimeout"` // not in Contiv: the deadline of one event

	RecordEventHistory            bool          `json:"recordEventHistory"`
	EventHistoryAgeLimit          time.Duration `json:"eventHistoryAgeLimit" conf:"minutes"`
	PermanentlyRecordedInitPeriod time.Duration `json:"permanentlyRecordedInitPeriod" conf:"minutes"`

	EnableVerification bool `json:"enableVerification"`
}

func defaultController() Controller {
	return Controller{
		EnableRetry:                   true,
		DelayRetry:                    time.Second,
		MaxRetryAttempts:              3,
		EnableExpBackoffRetry:         true,
		DelayLocalResync:              5 * time.Second,
		StartupResyncDeadline:         30 * time.Second,
		PeriodicHealingInterval:       30 * time.Second,
		DelayAfterErrorHealing:        5 * time.Second,
		HealingBackoffLimit:           5 * time.Minute,
		MaxHealingAttempts:            8,
		RemoteDBProbingInterval:       3 * time.Second,
		EventTimeout:                  time.Minute,
		RecordEventHistory:            true,
		EventHistoryAgeLimit:          time.Hour,
		PermanentlyRecordedInitPeriod: 10 * time.Minute,
	}
}

func (c *Controller) validate(p *yamldoc.Collector) {
	const section, day, year = "cadastre.controller.", 24 * time.Hour, 365 * 24 * time.Hour
	for _, d := range []struct {
		key          string
		value, limit time.Duration
		zero         bool // 0 is allowed: at once, or never
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
		checkDuration(p, section+d.key, d.value, d.limit, d.zero)
	}
	for _, n := range []struct {
		key              string
		value, low, high int
	}{
		{"maxRetryAttempts", c.MaxRetryAttempts, 0, 1000},
		{"maxHealingAttempts", c.MaxHealingAttempts, 1, 1000},
	} {
		checkNumber(p, section+n.key, n.value, n.low, n.high)
	}
}

func checkNumber(p *yamldoc.Collector, field string, value, low, high int) {
	if value < low || value > high {
		p.Add(RuleRange, field, strconv.Itoa(value), "is out of range: write a number from %d to %d", low, high)
	}
}

func checkDuration(p *yamldoc.Collector, field string, value, limit time.Duration, zero bool) {
	problem := ""
	switch {
	case value == 0 && zero:
		return
	case value < 0:
		problem = "is negative"
	case value < time.Millisecond:
		problem = "is too short (a number without a unit counts nanoseconds)"
	case value > limit:
		problem = "is too long"
	default:
		return
	}
	p.Add(RuleRange, field, short(value), "%s: write a duration from 1ms to %s", problem, short(limit))
}

// short returns d without zero minutes and seconds: 24h for 24h0m0s.
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
