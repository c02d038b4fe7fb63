package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
)

// load represents clients that repeatedly request the same URL. Each request uses a new connection
// and is not retried, so a user would also see each failure.
type load struct {
	url     string
	cancel  context.CancelFunc
	clients sync.WaitGroup

	mu       sync.Mutex
	answers  map[string]int // by server
	failures []string
}

// tally holds the results of a load.
type tally struct {
	answers  map[string]int
	failures []string
}

// total returns the number of answers from all servers.
func (t tally) total() (n int) {
	for _, count := range t.answers {
		n += count
	}
	return n
}

func (l *load) count(server string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures = append(l.failures, err.Error())
	} else {
		l.answers[server]++
	}
}

func (l *load) sofar() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return tally{maps.Clone(l.answers), append([]string(nil), l.failures...)}
}

// stop stops the clients after their current requests, and returns the results.
func (l *load) stop() tally {
	l.cancel()
	l.clients.Wait()
	return l.sofar()
}

// fetch sends one request on a new connection, and returns the name of the server that answered.
func fetch(url string) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	name, _, ok := strings.Cut(string(body), " ")
	if response.StatusCode != http.StatusOK || !ok {
		return "", fmt.Errorf("%s: %s: %q", url, response.Status, body)
	}
	return name, nil
}
