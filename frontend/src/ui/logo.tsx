export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" />
      <path d="M17 5c1 5-6 7-6 13a5.5 5.5 0 0 0 5.5 6C20 24 22 21.500 22 18c0-2-1-3.500-2-5-.3 1.700-1 2.500-2 3 .5-4-.2-8-1-11z" />
    </svg>
  );
}
