// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/kvdb"
)

// lists is a store whose lists are changed before they are answered.
func lists(change func([]kvdb.KeyValue, int64) ([]kvdb.KeyValue, int64)) func(kvdb.Store) kvdb.Store {
	return func(s kvdb.Store) kvdb.Store {
		return &broken{Store: s, list: func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
			kvs, rev, err := s.List(ctx, prefixes...)
			kvs, rev = change(kvs, rev)
			return kvs, rev, err
		}}
	}
}

// wrongReads are stores that answer something else than is stored.
func wrongReads() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"lists in the wrong order": lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) {
			slices.Reverse(kvs)
			return kvs, rev
		}),
		"lists in some locale's order": lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) {
			slices.SortStableFunc(kvs, func(a, b kvdb.KeyValue) int {
				return strings.Compare(strings.ToLower(a.Key), strings.ToLower(b.Key))
			})
			return kvs, rev
		}),
		"lists without revisions": lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) {
			for i := range kvs {
				kvs[i].ModRevision = 0
			}
			return kvs, rev
		}),
		"lists as of an earlier revision": lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) { return kvs, rev - 1 }),
		"lists as of a later revision":    lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) { return kvs, rev + 1 }),
		"lists in two steps": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, list: func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
				first, before, err := s.List(ctx, prefixes...)
				second, rev := first, before
				for wait := 0; wait < 100 && rev == before && err == nil; wait++ {
					runtime.Gosched()
					second, rev, err = s.List(ctx, prefixes...)
				}
				if len(first) == len(second) {
					copy(second, first[:len(first)/2])
				}
				return second, rev, err
			}}
		},
		"gets text only": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, get: func(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
				kv, found, err := s.Get(ctx, key)
				kv.Value = bytes.ToValidUTF8(kv.Value, []byte("?"))
				return kv, found, err
			}}
		},
	}
}

// wrongPrefixes are stores that mistake one key or prefix for another.
func wrongPrefixes() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"ends a prefix at 0xff": lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) {
			return slices.DeleteFunc(kvs, func(kv kvdb.KeyValue) bool { return kv.Key[0] == 0xff }), rev
		}),
		"takes a prefix for a folder": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, list: func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
				kvs, rev, err := s.List(ctx, prefixes...)
				return slices.DeleteFunc(kvs, func(kv kvdb.KeyValue) bool {
					return !slices.ContainsFunc(prefixes, func(prefix string) bool {
						folder := strings.TrimSuffix(prefix, "/") + "/"
						return prefix == "" || kv.Key == prefix || strings.HasPrefix(kv.Key, folder)
					})
				}), rev, err
			}}
		},
		"lists the world": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, list: func(ctx context.Context, _ ...string) ([]kvdb.KeyValue, int64, error) { return s.List(ctx, "") }}
		},
		"has things of its own": lists(func(kvs []kvdb.KeyValue, rev int64) ([]kvdb.KeyValue, int64) {
			return append(kvs, kvdb.KeyValue{Key: "\xff\xff\xff\xff", ModRevision: 1}), rev
		}),
		"gets by prefix": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, get: func(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
				kvs, _, err := s.List(ctx, key)
				if err != nil || len(kvs) == 0 {
					return kvdb.KeyValue{}, false, err
				}
				return kvs[0], true, nil
			}}
		},
	}
}

// wrongSeveral are stores that list well, but not several prefixes.
func wrongSeveral() map[string]func(kvdb.Store) kvdb.Store {
	several := func(list func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error)) func(kvdb.Store) kvdb.Store {
		return func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, list: func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
				if len(prefixes) == 1 {
					return s.List(ctx, prefixes...)
				}
				return list(s, ctx, prefixes)
			}}
		}
	}
	return map[string]func(kvdb.Store) kvdb.Store{
		"lists the first prefix": several(func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
			return s.List(ctx, prefixes[:min(1, len(prefixes))]...)
		}),
		"takes no prefix for all": several(func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
			if len(prefixes) == 0 {
				prefixes = []string{""}
			}
			return s.List(ctx, prefixes...)
		}),
		"lists no prefix at no revision": several(func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
			kvs, rev, err := s.List(ctx, prefixes...)
			if len(prefixes) == 0 {
				rev = 0
			}
			return kvs, rev, err
		}),
		"sorts the caller's prefixes": several(func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
			slices.Sort(prefixes)
			return s.List(ctx, prefixes...)
		}),
		"lists as many prefixes as are asked for": several(func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
			return s.List(ctx, prefixes[:min(len(prefixes), kvdb.MaxOps)]...)
		}),
		"takes too few prefixes": several(func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
			return s.List(ctx, prefixes[:min(len(prefixes), kvdb.MaxOps/2)]...)
		}),
		"lists one prefix after the other":  several(listOneByOne(false, false)),
		"lists a key once for each prefix":  several(listOneByOne(true, false)),
		"lists each prefix at its revision": several(listOneByOne(true, true)),
	}
}

// listOneByOne lists prefix by prefix: in order if sorted, each key once if
// once, but never at one revision during writes.
func listOneByOne(sorted, once bool) func(s kvdb.Store, ctx context.Context, prefixes []string) ([]kvdb.KeyValue, int64, error) {
	return func(s kvdb.Store, ctx context.Context, prefixes []string) (all []kvdb.KeyValue, rev int64, err error) {
		for _, prefix := range prefixes {
			kvs, now, err := s.List(ctx, prefix)
			for wait := 0; wait < 20_000 && now == rev && err == nil; wait++ {
				runtime.Gosched()
				kvs, now, err = s.List(ctx, prefix)
			}
			if err != nil {
				return nil, 0, err
			}
			all, rev = append(all, kvs...), now
		}
		if sorted {
			slices.SortFunc(all, func(a, b kvdb.KeyValue) int { return strings.Compare(a.Key, b.Key) })
		}
		if once {
			all = slices.CompactFunc(all, func(a, b kvdb.KeyValue) bool { return a.Key == b.Key })
		}
		return all, rev, nil
	}
}
