// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"sync/atomic"
	"time"
)

// quietClock is a clock on which a quiet minute passes at once, so that a scheduler repairs
// the next damage to a value without a wait.
type quietClock struct{ ahead atomic.Int64 }

func (c *quietClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *quietClock) pass() { c.ahead.Add(int64(time.Minute)) }
