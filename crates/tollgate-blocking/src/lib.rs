//! tollgate-blocking
