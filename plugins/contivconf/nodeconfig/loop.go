// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"math"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// LoopConfig returns the event loop's part of the configuration. Only the embedded
// store has a deadline for the first resync. A cluster store may be away for any time:
// the agent waits, serves existing leases, and its status names what it waits for.
func LoopConfig(all contivconf.Cadastre) controller.Config {
	const never time.Duration = math.MaxInt64
	conf, c := controller.DefaultConfig(), all.Controller
	conf.EnableRetry = c.EnableRetry
	conf.DelayRetry = c.DelayRetry
	conf.MaxRetryAttempts = c.MaxRetryAttempts
	conf.EnableExpBackoffRetry = c.EnableExpBackoffRetry
	conf.StartupResyncDeadline = never
	if all.KVDB.Type == contivconf.KVDBBolt {
		conf.StartupResyncDeadline = c.StartupResyncDeadline
	}
	conf.EnablePeriodicHealing = c.EnablePeriodicHealing
	conf.PeriodicHealingInterval = c.PeriodicHealingInterval
	conf.DelayAfterErrorHealing = c.DelayAfterErrorHealing
	conf.HealingBackoffLimit = c.HealingBackoffLimit
	conf.MaxHealingAttempts = c.MaxHealingAttempts
	conf.EventTimeout = c.EventTimeout
	conf.EnableVerification = c.EnableVerification
	conf.RecordEventHistory = c.RecordEventHistory
	conf.EventHistoryAgeLimit = c.EventHistoryAgeLimit
	conf.PermanentlyRecordedInitPeriod = c.PermanentlyRecordedInitPeriod
	return conf
}
