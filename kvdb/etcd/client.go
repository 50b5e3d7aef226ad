// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cadastre/cadastre/kvdb"
)

// How soon a lost connection is tried again. gRPC's own limit is two minutes,
// which etcd would seem to be away after it came back.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 3 * time.Second
)

// minPing is the shortest interval between pings that gRPC sends. etcd ends
// connections that ping more often than every five seconds.
const minPing = 10 * time.Second

// maxRequest limits the size of a request, with room to spare for one that
// etcd would still take.
const maxRequest = 2 << 20

// options are those of every request. A request waits for a connection.
func options() []grpc.CallOption {
	return []grpc.CallOption{
		grpc.WaitForReady(true),
		grpc.MaxCallSendMsgSize(maxRequest),
		grpc.MaxCallRecvMsgSize(math.MaxInt32),
	}
}

// client answers the client of all calls. It is not made by Open because with
// a password etcd is asked for a token, for which it must be there.
func (s *Store) client(ctx context.Context) (*clientv3.Client, error) {
	if client := s.made(nil); client != nil {
		return client, nil
	}
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if client := s.made(nil); client != nil {
		return client, nil
	}
	client, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	return s.made(client), nil
}

// made answers the client, if there is one, or keeps a fresh one.
func (s *Store) made(fresh *clientv3.Client) *clientv3.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh != nil {
		s.etcd = fresh
	}
	return s.etcd
}

func (s *Store) dial(ctx context.Context) (*clientv3.Client, error) {
	if err := s.authenticate(ctx); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	stillborn := context.AfterFunc(ctx, end)
	cfg := s.clientConfig(life)
	cfg.Username, cfg.Password = s.cfg.Username, s.cfg.Password
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithStatsHandler(&s.lines))
	client, err := clientv3.New(cfg)
	switch {
	case err != nil:
		end()
		return nil, err
	case !stillborn():
		_ = client.Close()
		return nil, context.Cause(ctx)
	}
	return client, nil
}

func (s *Store) clientConfig(life context.Context) clientv3.Config {
	return clientv3.Config{
		Endpoints:            s.cfg.Endpoints,
		TLS:                  s.cfg.TLS,
		Context:              life,
		DialKeepAliveTime:    max(s.cfg.KeepAlive, minPing),
		DialKeepAliveTimeout: s.cfg.KeepAliveTimeout,
		Logger:               bridge(s.cfg.Log),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRetry, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastRetry},
			MinConnectTimeout: s.cfg.RequestTimeout,
		})},
	}
}

// authenticate finds out whether etcd is there and takes the password. The
// client does that again when it is made, but keeps to itself what is wrong.
func (s *Store) authenticate(ctx context.Context) error {
	if s.cfg.Username == "" {
		return nil
	}
	client, err := clientv3.New(s.clientConfig(ctx))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	req := &pb.AuthenticateRequest{Name: s.cfg.Username, Password: s.cfg.Password}
	_, err = pb.NewAuthClient(client.ActiveConnection()).Authenticate(ctx, req, options()...)
	if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		return nil
	}
	return err
}

// explain returns the error for the caller of a request in ctx that ended with err.
func explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if expired(err) && (ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded) {
		cause := cmp.Or(context.Cause(ctx), context.DeadlineExceeded) // etcd's clock may be first
		if text := dialed(
			status.Convert(err).Message(),
		); errors.Is(cause, context.DeadlineExceeded) &&
			text != cause.Error() {
			return fmt.Errorf("%w (%s)", cause, text)
		}
		return cause
	}
	switch known := rpctypes.Error(err); {
	case errors.Is(known, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w (%w)", kvdb.ErrTooManyOps, known)
	case errors.Is(known, rpctypes.ErrDuplicateKey):
		return fmt.Errorf("%w (%w)", kvdb.ErrKey, known)
	case errors.Is(known, rpctypes.ErrCompacted):
		return fmt.Errorf("%w (%w)", kvdb.ErrCompacted, known)
	default:
		return plainly(known)
	}
}

// saidPlainly is an error of gRPC with its message alone.
type saidPlainly struct{ error }

func (e saidPlainly) Error() string { return dialed(status.Convert(e.error).Message()) }

// Unwrap returns the error of gRPC.
func (e saidPlainly) Unwrap() error { return e.error }

// plainly returns err without the code and the quotes of gRPC in its text.
func plainly(err error) error {
	//nolint:errorlint // what wraps it says more
	if _, itself := err.(interface{ GRPCStatus() *status.Status }); !itself {
		return err
	}
	return saidPlainly{err}
}

// dialed returns the reason of a failed dial from the text of gRPC, which has it in the
// innermost of several quotes; another text as it is.
func dialed(text string) string {
	const dialing = "Error while dialing: "
	if at := strings.LastIndex(text, dialing); at >= 0 {
		return strings.TrimRight(text[at+len(dialing):], `"`)
	}
	return text
}

// expired reports whether err is about the end of a context, noticed here or in a member.
func expired(err error) bool {
	code := status.Code(err)
	return code == codes.DeadlineExceeded || code == codes.Canceled ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
