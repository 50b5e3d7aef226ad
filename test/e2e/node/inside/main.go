// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command inside runs in the pods of the end-to-end test with Kubernetes nodes.
//
// "inside serve ADDRESS" answers each request over HTTP with the name of the pod and the
// source address of the request. "inside fetch URL" prints such an answer; it makes one
// request and waits five seconds at most.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	const words = 2
	if len(args) == words {
		switch args[0] {
		case "serve":
			return serve(args[1])
		case "fetch":
			return fetch(ctx, args[1], stdout)
		}
	}
	return errors.New("want serve ADDRESS or fetch URL")
}

// serve serves until the process is killed.
func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := http.Server{Addr: address, ReadHeaderTimeout: time.Minute, Handler: answer(name)}
	return server.ListenAndServe()
}

// answer writes the name and the source address of the request.
func answer(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, name, host)
	}
}

func fetch(ctx context.Context, url string, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(stdout, response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(response.Status))
	}
	return errors.Join(err, response.Body.Close())
}
