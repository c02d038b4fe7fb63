// Package version says which build this is. Both binaries share it; a release build fills it in:
//
//	go build -ldflags "-X vipd/cmd/internal/version.Version=v1.2.3" ./cmd/vipd
//
// Commit and the toolchain come from what Go writes into every binary.
package version
