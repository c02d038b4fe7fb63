package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// spread: each server gets its share, exactly.
func (t *tourist) spread(ctx context.Context) error {
	fmt.Println("\n1. requests are spread")
	var seen tally
	seen.answers = map[string]int{}
	for range 300 {
		name, err := fetch("http://" + tourVIP + "/")
		if err != nil {
			return err
		}
		seen.answers[name]++
	}
	even := seen.answers["a"] == 100 && seen.answers["b"] == 100 && seen.answers["c"] == 100
	t.claim(even, "300 requests: a %d, b %d, c %d", seen.answers["a"], seen.answers["b"], seen.answers["c"])
	return ctx.Err()
}

// death: a server is killed in mid-work. What it had taken dies with it, nothing else.
func (t *tourist) death(ctx context.Context) error {
	fmt.Printf("\n2. server b is killed (kill -9) while %d clients ask, and comes back\n", clients)
	before, err := t.accepted("b")
	if err != nil {
		return err
	}
	given, err := t.endpoint(ctx, "b")
	if err != nil {
		return err
	}
	l := startLoad(ctx, clients, "http://"+tourVIP+"/slow?ms=10")
	defer l.stop()
	if err := t.answering(ctx, l, "b", 100); err != nil {
		return err
	}
	t.servers["b"].Kill()
	if err := t.answering(ctx, l, "a", 200); err != nil {
		return err
	}
	seen := l.stop()
	after, err := t.accepted("b")
	if err != nil {
		return err
	}
	now, err := t.endpoint(ctx, "b")
	if err != nil {
		return err
	}
	// A connection that the kernel had taken for b, but b itself had not yet accepted, dies with it too.
	accepted := after - before
	queued := max(0, now.Connections-given.Connections-accepted)
	lost := accepted - seen.answers["b"]
	fmt.Printf("       b accepted %d by its own count and answered %d; %d more were in its queue; %d answers in all\n",
		accepted, seen.answers["b"], queued, seen.total())
	t.claim(len(seen.failures) <= lost+queued, "%d requests failed, none but the %d that b had taken when it died%s",
		len(seen.failures), lost+queued, first(seen.failures))

	l = startLoad(ctx, clients, "http://"+tourVIP+"/slow?ms=10")
	defer l.stop()
	if err := t.answering(ctx, l, "c", 50); err != nil {
		return err
	}
	quiet := l.sofar().answers["b"]
	t.claim(quiet == 0, "while b is gone it answers nothing (%d) and the others carry on", quiet)
	if err := t.startServer(ctx, "b"); err != nil {
		return err
	}
	if err := t.answering(ctx, l, "b", 50); err != nil {
		return err
	}
	seen = l.stop()
	t.claim(seen.answers["b"] >= 50, "b is back and gets requests again (%d)", seen.answers["b"])
	t.noFailures(seen)
	return nil
}

// drained: a server is taken out of service with work in hand, and nobody notices.
func (t *tourist) drained(ctx context.Context) error {
	fmt.Printf("\n3. server b is drained while %d clients ask for slow answers\n", clients)
	l := startLoad(ctx, clients, "http://"+tourVIP+"/slow?ms=200")
	defer l.stop()
	if err := t.answering(ctx, l, "b", 5); err != nil {
		return err
	}
	began := time.Now()
	if _, err := t.vipctl(ctx, "drain", "web", serverAddress("b"), "--wait", "--reason", "tour"); err != nil {
		return err
	}
	took := time.Since(began)
	e, err := t.endpoint(ctx, "b")
	if err != nil {
		return err
	}
	t.claim(e.Active == 0 && e.State == "draining", "vipctl drain --wait returned after %v: b is %s with %d connections",
		took.Round(time.Millisecond), e.State, e.Active)
	quiet, err := t.accepted("b")
	if err != nil {
		return err
	}
	if err := t.answering(ctx, l, "a", 20); err != nil {
		return err
	}
	still, err := t.accepted("b")
	if err != nil {
		return err
	}
	t.claim(still == quiet, "b got nothing new while it was drained (%d before, %d after)", quiet, still)
	if err := t.servers["b"].Stop(patience); err != nil {
		return err
	}
	if err := t.answering(ctx, l, "a", 5); err != nil {
		return err
	}
	if err := t.startServer(ctx, "b"); err != nil {
		return err
	}
	if _, err := t.vipctl(ctx, "undrain", "web", serverAddress("b")); err != nil {
		return err
	}
	if err := t.answering(ctx, l, "b", 5); err != nil {
		return err
	}
	t.noFailures(l.stop())
	return nil
}

// reloaded: the file changes under load, and is taken without a command.
func (t *tourist) reloaded(ctx context.Context) error {
	fmt.Println("\n4. the file changes: a gets weight 3, c is removed")
	text := strings.Replace(tourConfig, "address = \"127.10.9.11\"", "address = \"127.10.9.11\"\nweight = 3", 1)
	text = strings.TrimSuffix(text, "\n[[services.web.endpoints]]\naddress = \"127.10.9.13\"\n")
	l := startLoad(ctx, clients, "http://"+tourVIP+"/slow?ms=10")
	defer l.stop()
	if err := t.answering(ctx, l, "c", 20); err != nil {
		return err
	}
	if err := t.write(text); err != nil {
		return err
	}
	err := await(ctx, "vipd has noticed the change by itself", func() (bool, error) {
		var status struct{ Endpoints int }
		err := t.ask(ctx, &status, "status")
		return status.Endpoints == 2, err
	})
	if err != nil {
		return err
	}
	t.noFailures(l.stop())
	seen := map[string]int{}
	for range 400 {
		name, err := fetch("http://" + tourVIP + "/")
		if err != nil {
			return err
		}
		seen[name]++
	}
	t.claim(seen["a"] == 300 && seen["b"] == 100, "400 requests: a %d, b %d, c %d", seen["a"], seen["b"], seen["c"])
	return nil
}

// brokenFile: a mistake in the file is named, and traffic does not notice it.
func (t *tourist) brokenFile(ctx context.Context) error {
	fmt.Println("\n5. the file breaks: weigth = 3, ports = [{ port = 80800 }]")
	text := strings.Replace(tourConfig, "address = \"127.10.9.11\"", "address = \"127.10.9.11\"\nweigth = 3", 1)
	text = strings.Replace(text, "port = 8080 ", "port = 80800 ", 1)
	l := startLoad(ctx, clients, "http://"+tourVIP+"/slow?ms=10")
	defer l.stop()
	if err := t.answering(ctx, l, "a", 20); err != nil {
		return err
	}
	if err := t.write(text); err != nil {
		return err
	}
	answer, err := t.vipctl(ctx, "reload")
	t.claim(err != nil, "vipctl reload fails")
	status, err := t.vipctl(ctx, "status")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(strings.TrimSpace(answer), "\n") {
		fmt.Printf("       %s\n", line)
	}
	port, typo := lineOf(text, "80800"), lineOf(text, "weigth")
	for _, want := range []string{fmt.Sprintf("vipd.toml:%d", port), fmt.Sprintf("vipd.toml:%d", typo), "weigth"} {
		t.claim(strings.Contains(status, want), "vipctl status names %s", want)
	}
	if err := t.answering(ctx, l, "a", 50); err != nil {
		return err
	}
	seen := l.stop()
	t.noFailures(seen)

	if err := t.write(tourConfig); err != nil {
		return err
	}
	_, err = t.vipctl(ctx, "reload")
	t.claim(err == nil, "with the file mended, vipctl reload succeeds%s", because(err))
	return nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// lineOf is the number of the line that has the word.
func lineOf(text, word string) int {
	before, _, _ := strings.Cut(text, word)
	return 1 + strings.Count(before, "\n")
}
