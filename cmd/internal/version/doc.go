// Package version identifies the build. Both binaries use it. A release build sets the version:
//
//	go build -ldflags "-X vipd/cmd/internal/version.Version=v1.2.3" ./cmd/vipd
//
// The commit and the toolchain are in the build information that Go embeds.
package version
