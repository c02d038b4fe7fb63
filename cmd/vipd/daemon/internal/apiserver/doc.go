// Package apiserver answers requests of vipctl on the API's socket (cmd/internal/api).
//
//	request -> httpserve -> may the caller change vipd? -> a view of one moment, or a part that does what was requested -> JSON
//
// Package status provides the views. Package apiserver itself has no state.
package apiserver
