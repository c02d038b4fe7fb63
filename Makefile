# Everything that one does with this tree. "make" alone lists it.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
# Everywhere, so that what one target has compiled serves the others, and the tests that build programs.
export GOFLAGS := -trimpath $(GOFLAGS)
VERSION ?= $(shell packaging/version 2>/dev/null || echo unknown)
# The commit is stamped where git can tell it; in a tree without .git, or of another user, the build must not fail.
STAMP   := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)
REPORT  := CGO_ENABLED=0 $(GO) build -buildvcs=false -o build/report ./test/report && build/report
BUILD   := CGO_ENABLED=0 $(GO) build -buildvcs=$(STAMP) -ldflags "-X vipd/cmd/internal/version.Version=$(VERSION)"
# Pinned in a file of its own and not in go.mod, so that a linter's dependencies are never the program's.
STATICCHECK := $(GO) tool -modfile=test/lint.mod staticcheck

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
LIBDIR     ?= $(PREFIX)/lib
DATADIR    ?= $(PREFIX)/share
DESTDIR    ?=

.PHONY: help build run demo demo-pair check test soak test-kernel test-ipvs test-windows fresh needs bench lint cover package package-test install uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/vipd, bin/vipctl, their manual pages in bin/man, and the servers of the examples
	@mkdir -p bin
	$(BUILD) -o bin/ ./cmd/vipd ./cmd/vipctl ./examples/echo ./examples/demo
	@CGO_ENABLED=0 $(GO) run -buildvcs=false ./packaging/man -bin bin -o bin/man -version "$(VERSION)"

run: build ## three servers behind a VIP on this machine, without root; Ctrl-C ends it
	@bin/demo run

demo: build ## a tour that ends by itself: load, a dying server, a drain, a reload, a broken file
	@bin/demo tour

demo-pair: build ## two gateways that share a VIP by VRRP: a planned move, a kill and a cut, in network namespaces (needs root)
	@examples/pair/demo

# What was changed since the commit that upstream has too, or since the last one where there is no upstream.
CHANGED = { git diff --name-only --diff-filter=d "$$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)"; \
	git ls-files --others --exclude-standard; } | { grep '\.go$$' || true; } | sort -u

check: ## before each commit, about a minute, without root, race detector or network: lint of what changed, and the tests of single parts
	@files=$$($(CHANGED)); [ -z "$$files" ] || { \
		unformatted=$$(gofmt -l $$files); if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi; \
		packages=$$(dirname $$files | sort -u | sed 's,^,./,'); $(GO) vet $$packages && $(STATICCHECK) $$packages; }
	@$(GO) test -short -p=6 -timeout=20m ./balancer/... ./store/... ./dataplane/... ./cmd/... ./test/deps/... | { grep -v 'no test files' || true; }

test: needs ## every test, under the race detector; skips, and tests that pass only alone, are listed at the end
	@$(REPORT) -again -race -vet=off -timeout=60m ./...

soak: needs ## every test, with all of the random histories and sizes of which "make test" takes the first ones (an hour; see docs/contributing.md)
	@for os in windows darwin; do GOOS=$$os CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/vipd ./cmd/vipctl; done
	@export VIPD_SOAK=1; $(REPORT) -race -count=1 -timeout=60m ./...
	@test/fuzz 60s

test-kernel: needs ## only the packages whose tests need root and make real kernel objects
	@$(REPORT) -kernel -race -count=1 -timeout=20m

test-ipvs: needs ## only the tests that need IPVS: here if the kernel has it, else in a guest
	@$(REPORT) -ipvs -race -count=1 -timeout=20m

# Those whose tests need neither Linux nor what wine 8 lacks: Unix sockets, and the way in which Go deletes temporary folders.
PORTABLE := ./balancer ./balancer/decode ./balancer/health ./balancer/health/quorum ./balancer/failover ./balancer/pick ./balancer/snap ./balancer/lib/sockerr \
	./store ./dataplane ./cmd/internal/convert ./cmd/internal/events

test-windows: ## vipd as a service of Windows, and the tests of portable packages, by wine (apt-get install wine wine64 binutils-mingw-w64-x86-64)
	VIPD_SOAK=1 $(GO) test -count=1 ./test/windows
	GOOS=windows CGO_ENABLED=0 $(GO) test -short -count=1 -exec $(CURDIR)/test/windows/wine $(PORTABLE); code=$$?; test/windows/wine end; exit $$code

fresh: ## run, check, package, install and serve in a fresh Debian with only Go, git, make and certificates (as root, with mmdebstrap)
	test/fresh build/fresh

needs:
	@test/needs

bench: build ## every benchmark, userspace mode beside HAProxy and nginx, iptables mode beside kube-proxy's rules, ipvs mode beside ipvsadm (minutes; on a quiet machine)
	@test/needs bench
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./... | grep -v 'no test files'
	$(GO) run -buildvcs=false ./test/bench -vipd bin/vipd
	$(GO) run -buildvcs=false ./test/bench/kernel -plot docs/first-packet.svg
	$(GO) run -buildvcs=false ./test/bench/kernel -ipvs

# The commits that upstream lacks, or none without an upstream.
NEW = "$$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)..HEAD"

# With the race detector, so that the packages and tests compiled for vet and staticcheck also serve "make lint test"; and with rarer
# garbage collections, because the programs end soon.
lint: ## gofmt, go vet, staticcheck, comments, subjects of new commits, and the types of the programs for Windows and macOS
	@long=$$(git log --format=%s $(NEW) 2>/dev/null | awk 'length > 72'); if [ -n "$$long" ]; then echo "subjects over 72 columns:"; echo "$$long"; exit 1; fi
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	GOGC=400 $(GO) vet -race ./...
	$(GO) test ./test/style
	CGO_ENABLED=0 $(GO) build -modfile=test/lint.mod -o build/staticcheck honnef.co/go/tools/cmd/staticcheck
	GOGC=400 GOFLAGS="$(GOFLAGS) -race" build/staticcheck ./...
	CGO_ENABLED=0 $(GO) run -buildvcs=false ./test/typecheck windows darwin -- ./cmd/vipd ./cmd/vipctl

cover: ## statement coverage of each package by all tests together
	@mkdir -p build
	@$(GO) test -coverpkg ./... -coverprofile build/cover.out ./... >build/cover.log || { cat build/cover.log; exit 1; }
	@awk -f test/cover.awk build/cover.out

package: ## build/packages: .deb and .rpm for amd64 and arm64, of this commit; MAINTAINER="Name <mail>" says who made them
	packaging/build build/packages amd64 arm64

package-test: needs ## builds packages of two versions, and installs, upgrades, downgrades, removes and purges them on a machine in namespaces (as root; minutes)
	@rm -rf build/package-test
	VERSION=v0.0.1 packaging/build build/package-test/old amd64
	VERSION=v0.0.2 packaging/build build/package-test/new amd64 arm64
	VERSION=v0.0.2 packaging/build build/package-test/again amd64 arm64
	VIPD_PACKAGES=$(CURDIR)/build/package-test $(GO) test -count=1 -run "Packages|RPM" ./packaging/... ./test/systemd

install: ## (after build) to DESTDIR: programs, units, modules' options, completions, manual pages, and a default config unless there is one
	@test -x bin/vipd || { echo 'run "make build" first'; exit 1; } # not as a dependency: under sudo there may be no Go
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSCONFDIR)/vipd
	install -m 0755 bin/vipd bin/vipctl $(DESTDIR)$(BINDIR)/
	sed 's,/usr/local/bin/,$(BINDIR)/,; s,/etc/vipd/,$(SYSCONFDIR)/vipd/,' systemd/vipd.service >bin/vipd.service
	install -m 0644 bin/vipd.service $(DESTDIR)$(UNITDIR)/vipd.service
	sed 's,/usr/local/bin/,$(BINDIR)/,; s,/etc/vipd/,$(SYSCONFDIR)/vipd/,' systemd/vipd-owner.service >bin/vipd-owner.service
	install -m 0644 bin/vipd-owner.service $(DESTDIR)$(UNITDIR)/vipd-owner.service
	for d in modprobe.d modules-load.d sysctl.d sysusers.d tmpfiles.d; do install -D -m 0644 systemd/$$d/vipd.conf $(DESTDIR)$(LIBDIR)/$$d/vipd.conf; done
	if [ ! -e $(DESTDIR)$(SYSCONFDIR)/vipd/vipd.toml ]; then install -m 0644 systemd/vipd.toml $(DESTDIR)$(SYSCONFDIR)/vipd/vipd.toml; fi
	bin/vipctl completion bash | install -D -m 0644 /dev/stdin $(DESTDIR)$(DATADIR)/bash-completion/completions/vipctl
	bin/vipctl completion zsh  | install -D -m 0644 /dev/stdin $(DESTDIR)$(DATADIR)/zsh/site-functions/_vipctl
	bin/vipctl completion fish | install -D -m 0644 /dev/stdin $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/vipctl.fish
	install -D -m 0644 packaging/vipd.schema.json $(DESTDIR)$(DATADIR)/vipd/vipd.schema.json
	for page in $(notdir $(wildcard bin/man/*)); do install -D -m 0644 bin/man/$$page $(DESTDIR)$(DATADIR)/man/man$${page##*.}/$$page; done

uninstall: ## what install has put to DESTDIR but for the config: stop vipd, and "vipctl cleanup" before
	rm -f $(DESTDIR)$(BINDIR)/vipd $(DESTDIR)$(BINDIR)/vipctl $(DESTDIR)$(UNITDIR)/vipd.service $(DESTDIR)$(UNITDIR)/vipd-owner.service
	for d in modprobe.d modules-load.d sysctl.d sysusers.d tmpfiles.d; do rm -f $(DESTDIR)$(LIBDIR)/$$d/vipd.conf; done
	rm -f $(DESTDIR)$(DATADIR)/bash-completion/completions/vipctl $(DESTDIR)$(DATADIR)/zsh/site-functions/_vipctl
	rm -f $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/vipctl.fish $(DESTDIR)$(DATADIR)/man/man1/{vipctl,vipctl-*}.1
	rm -f $(DESTDIR)$(DATADIR)/vipd/vipd.schema.json $(DESTDIR)$(DATADIR)/man/man5/vipd.toml.5 $(DESTDIR)$(DATADIR)/man/man8/vipd.8

clean: ## remove what the targets above have built
	rm -rf bin build
