// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clock gives the ledger the time. All other durations and deadlines use Go's
// monotonic clock, which no jump can move.
type clock struct {
	now    func() time.Time
	uptime func() time.Duration // since boot, asleep or awake
	bootID string
}

// newHostClock returns the clock of this machine. The kernel holds the boot ID in a
// file.
func newHostClock(bootIDFile string) (clock, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return clock{}, fmt.Errorf("read the boot ID: %w", err)
	}
	uptime := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			panic(fmt.Sprintf("CLOCK_BOOTTIME: %v", err)) // every Linux since 2.6.39 has it
		}
		return time.Duration(ts.Nano())
	}
	return clock{now: time.Now, uptime: uptime, bootID: strings.TrimSpace(string(id))}, nil
}
