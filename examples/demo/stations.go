package main

import (
	"fmt"
	"strings"
	"time"
)

// spread verifies that each server gets exactly its share of requests.
func (t *tourist) spread() {
	t.say("\n1. requests are spread over the servers")
	seen := t.fetch(300)
	t.claim(seen["a"] == 100 && seen["b"] == 100 && seen["c"] == 100, "300 requests: a %d, b %d, c %d", seen["a"], seen["b"], seen["c"])
}

// death kills a server under load and starts it again. Only requests on connections that the server
// had accepted may fail.
func (t *tourist) death() {
	t.say("\n2. server b is killed (kill -9) while %d clients send requests, and is restarted", clients)
	before, given := t.accepted("b"), t.endpoint("b")
	l := t.startLoad("/slow?ms=10")
	t.answering(l, "b", 100)
	t.do(func() error { t.servers["b"].Kill(); return nil })
	t.answering(l, "a", 200)
	seen := l.stop()
	after, now := t.accepted("b"), t.endpoint("b")
	// A connection also fails if the kernel had accepted it for b, but b itself had not.
	accepted := after - before
	queued := max(0, now.Connections-given.Connections-accepted)
	lost := accepted - seen.answers["b"]
	t.say("       b counted %d accepted requests and answered %d; %d more were in its queue; %d answers in total",
		accepted, seen.answers["b"], queued, seen.total())
	t.claim(len(seen.failures) <= lost+queued, "%d requests failed; only the %d that b had accepted when it died may fail%s",
		len(seen.failures), lost+queued, first(seen.failures))

	l = t.startLoad("/slow?ms=10")
	t.answering(l, "c", 50)
	quiet := l.sofar().answers["b"]
	t.claim(quiet == 0, "while b is down, it answers nothing (%d), and the other servers continue", quiet)
	t.startServer("b")
	t.answering(l, "b", 50)
	seen = l.stop()
	t.claim(seen.answers["b"] >= 50, "b is back and gets requests again (%d)", seen.answers["b"])
	t.noFailures(seen)
}

// drained drains a busy server, restarts it and ends the drain. No request may fail.
func (t *tourist) drained() {
	t.say("\n3. server b is drained while %d clients request slow answers", clients)
	l := t.startLoad("/slow?ms=200")
	t.answering(l, "b", 5)
	began := time.Now()
	t.command("drain", "web", serverAddress("b"), "--wait", "--reason", "tour")
	took := time.Since(began)
	e := t.endpoint("b")
	t.claim(e.Active == 0 && e.State == "draining", "vipctl drain --wait returned after %v: b is %s with %d connections",
		took.Round(time.Millisecond), e.State, e.Active)
	quiet := t.accepted("b")
	t.answering(l, "a", 20)
	still := t.accepted("b")
	t.claim(still == quiet, "b got no new requests while it was drained (%d before, %d after)", quiet, still)
	t.do(func() error { return t.servers["b"].Stop(patience) })
	t.answering(l, "a", 5)
	t.startServer("b")
	t.command("undrain", "web", serverAddress("b"))
	t.answering(l, "b", 5)
	t.noFailures(l.stop())
}

// reloaded changes the configuration under load. vipd must apply the change without a command, and
// no request may fail.
func (t *tourist) reloaded() {
	t.say("\n4. the file changes: a gets weight 3, c is removed")
	text := strings.Replace(tourConfig, "address = \"127.10.9.11\"", "address = \"127.10.9.11\"\nweight = 3", 1)
	text = strings.TrimSuffix(text, "\n[[services.web.endpoints]]\naddress = \"127.10.9.13\"\n")
	l := t.startLoad("/slow?ms=10")
	t.answering(l, "c", 20)
	t.write(text)
	t.await("vipd has noticed the change by itself", func() (bool, error) {
		var status struct {
			Endpoints int
			Sync      struct {
				Wanted, Applied int64
				Pending         int
			}
		}
		err := t.ask(t.ctx, &status, "status")
		return status.Endpoints == 2 && status.Sync.Applied == status.Sync.Wanted && status.Sync.Pending == 0, err // the new configuration is applied
	})
	t.noFailures(l.stop())
	seen := t.fetch(400)
	t.claim(seen["a"] == 300 && seen["b"] == 100, "400 requests: a %d, b %d, c %d", seen["a"], seen["b"], seen["c"])
}

// brokenFile writes two mistakes into the configuration. vipd must report both, and no request may
// fail.
func (t *tourist) brokenFile() {
	t.say("\n5. the file breaks: weigth = 3, ports = [{ port = 80800 }]")
	text := strings.Replace(tourConfig, "address = \"127.10.9.11\"", "address = \"127.10.9.11\"\nweigth = 3", 1)
	text = strings.Replace(text, "port = 8080 ", "port = 80800 ", 1)
	l := t.startLoad("/slow?ms=10")
	t.answering(l, "a", 20)
	t.write(text)
	answer, err := t.vipctl(t.ctx, "reload")
	t.claim(err != nil, "vipctl reload fails")
	status := t.command("status")
	for _, line := range strings.Split(strings.TrimSpace(answer), "\n") {
		t.say("       %s", line)
	}
	for _, want := range []string{lineOf(text, "80800"), lineOf(text, "weigth"), "weigth"} {
		t.claim(strings.Contains(status, want), "vipctl status names %s", want)
	}
	t.answering(l, "a", 50)
	t.noFailures(l.stop())

	t.write(tourConfig)
	why := ""
	if _, err = t.vipctl(t.ctx, "reload"); err != nil {
		why = ": " + err.Error()
	}
	t.claim(err == nil, "after the file is fixed, vipctl reload succeeds%s", why)
}

// lineOf returns a word's location in the configuration as vipd reports it: vipd.toml:LINE.
func lineOf(text, word string) string {
	before, _, _ := strings.Cut(text, word)
	return fmt.Sprintf("vipd.toml:%d", 1+strings.Count(before, "\n"))
}
