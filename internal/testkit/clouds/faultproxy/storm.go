// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faultproxy

import "sync"

// Rates are the shares of requests, from 0 to 1, with a random fault.
type Rates struct {
	Lost        float64 // of which the answer is lost
	Hung        float64 // that hang, half of them after they were done
	Throttled   float64 // that are refused for their rate
	Burst       float64 // with which a burst of failures begins
	BurstLength int     // requests of a burst
}

// Storm returns a plan of random faults. random returns a number from 0 to below 1; it is
// called by one goroutine at a time.
func Storm(rates Rates, random func() float64) Plan {
	var mu sync.Mutex
	left := 0 // of the present burst
	return func(Request) Outcome {
		mu.Lock()
		defer mu.Unlock()
		if left == 0 && random() < rates.Burst {
			left = rates.BurstLength
		}
		if left > 0 {
			left--
			return Fail
		}
		at := random()
		for _, fault := range []struct {
			share float64
			Outcome
		}{
			{rates.Lost, Lose}, {rates.Hung / 2, Hang}, {rates.Hung / 2, HangDone}, {rates.Throttled, Throttle},
		} {
			if at < fault.share {
				return fault.Outcome
			}
			at -= fault.share
		}
		return Pass
	}
}
